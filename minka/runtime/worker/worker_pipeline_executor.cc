#include "minka/runtime/worker/worker_pipeline_executor.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/runtime/worker/program_proto.h"

namespace minka {
namespace {

// So many steps may be under way before a call waits for the oldest.
constexpr size_t kMostLaunched = 8;

// Arrays that workers hold, one for each mesh.
struct WorkerStorage : ArrayStorage {
  struct Place {
    int worker = 0;
    uint64_t array = 0;
  };

  explicit WorkerStorage(std::shared_ptr<Workers> of) : workers(std::move(of)) {}
  WorkerStorage(const WorkerStorage&) = delete;
  WorkerStorage& operator=(const WorkerStorage&) = delete;
  ~WorkerStorage() override {
    for (const Place& place : places) {
      worker::Request request;
      request.mutable_free()->add_arrays(place.array);
      workers->Tell(place.worker, std::move(request));
    }
  }

  int worker() const override { return places.front().worker; }

  PendingParts Fetch(std::vector<int64_t> devices, size_t part_bytes) const override {
    const Place& place = places.front();
    std::shared_ptr<WorkerAnswer> answer =
        workers->Fetch(place.worker, place.array, devices, part_bytes);
    workers->Flush();
    return [workers = workers, worker = place.worker, answer = std::move(answer)] {
      return workers->WaitForParts(worker, *answer);
    };
  }

  std::shared_ptr<Workers> workers;
  std::vector<Place> places;  // by mesh
};

const WorkerStorage& StorageOf(const DistributedArray& array, const Workers& workers) {
  const auto* const storage = dynamic_cast<const WorkerStorage*>(&array.storage());
  MINKA_CHECK(storage != nullptr && storage->workers.get() == &workers,
              "{} does not lie on these workers", array.ToString());
  return *storage;
}

}  // namespace

WorkerPipelineExecutor::WorkerPipelineExecutor(std::shared_ptr<Workers> workers,
                                               PipelineProgram program)
    : PipelineExecutor(std::move(program)),
      workers_(std::move(workers)),
      number_(workers_->NewNumber()) {}

absl::StatusOr<std::unique_ptr<WorkerPipelineExecutor>> WorkerPipelineExecutor::Create(
    std::shared_ptr<Workers> workers, PipelineProgram program) {
  if (program.meshes.size() > static_cast<size_t>(workers->size())) {
    return InvalidArgument("the pipeline has {} meshes, and there are {} workers",
                           program.meshes.size(), workers->size());
  }
  std::unique_ptr<WorkerPipelineExecutor> executor(
      new WorkerPipelineExecutor(std::move(workers), std::move(program)));
  RETURN_IF_ERROR(executor->Load());
  return executor;
}

WorkerPipelineExecutor::~WorkerPipelineExecutor() {
  workers_->Forget(number_);
  for (int mesh = 0; mesh < static_cast<int>(program().meshes.size()); ++mesh) {
    worker::Request request;
    request.mutable_unload()->set_program(number_);
    workers_->Tell(mesh, std::move(request));
  }
  workers_->Flush();
}

absl::Status WorkerPipelineExecutor::Load() {
  workers_->Describe(number_, [this](int worker, int instruction) {
    const MeshProgram& mesh = program().meshes[worker];
    // Program and instruction of a worker that runs are read one after the other.
    const bool is_known =
        instruction >= 0 && static_cast<size_t>(instruction) < mesh.instructions.size();
    return is_known ? InstructionName(mesh, instruction) : std::string("run a step");
  });
  std::vector<std::shared_ptr<WorkerAnswer>> answers;
  for (int mesh = 0; mesh < static_cast<int>(program().meshes.size()); ++mesh) {
    worker::Request request;
    request.mutable_load()->set_program(number_);
    *request.mutable_load()->mutable_mesh_program() =
        MeshProgramToProto(program().meshes[mesh], PeersOf(program(), mesh));
    answers.push_back(workers_->Ask(mesh, std::move(request)));
  }
  workers_->Flush();
  for (const std::shared_ptr<WorkerAnswer>& answer : answers) {
    ASSIGN_OR_RETURN(const std::vector<worker::Reply> replies, workers_->Wait(*answer));
    const worker::Loaded& loaded = replies.front().loaded();
    const size_t num_programs = program().meshes[memory_.size()].programs.size();
    if (static_cast<size_t>(loaded.programs_size()) != num_programs) {
      return InternalError("a worker loaded {} programs of {}", loaded.programs_size(),
                           num_programs);
    }
    std::vector<pjrt::MemoryStatistics>& of_mesh = memory_.emplace_back();
    for (const worker::Memory& memory : loaded.programs()) {
      of_mesh.push_back({.argument_bytes = memory.argument_bytes(),
                         .output_bytes = memory.output_bytes(),
                         .alias_bytes = memory.alias_bytes(),
                         .temp_bytes = memory.temp_bytes(),
                         .generated_code_bytes = memory.generated_code_bytes()});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> WorkerPipelineExecutor::OptimizedModule(int mesh, int program) {
  worker::Request request;
  request.mutable_optimized()->set_program(number_);
  request.mutable_optimized()->set_number(program);
  const std::shared_ptr<WorkerAnswer> answer = workers_->Ask(mesh, std::move(request));
  workers_->Flush();
  ASSIGN_OR_RETURN(const std::vector<worker::Reply> replies, workers_->Wait(*answer));
  std::string module;
  for (const worker::Reply& reply : replies) module += reply.part().bytes();
  return module;
}

absl::StatusOr<DistributedArray> WorkerPipelineExecutor::Put(int parameter,
                                                             const HostArray& value) {
  ArrayLayout layout = ParameterLayout(parameter);
  const absl::Status fits = CheckShape(layout.shape, value.shape);
  if (!fits.ok()) return WithContext(fits, fmt::format("parameter {}", parameter));
  auto storage = std::make_shared<WorkerStorage>(workers_);
  for (const MeshSlot& at : program().parameters[parameter]) {
    storage->places.push_back({at.mesh, workers_->NewNumber()});
    worker::Put put;
    put.set_array(storage->places.back().array);
    put.set_program(number_);
    put.set_slot(at.slot);
    workers_->Put(at.mesh, put, value.contents.bytes);
  }
  RETURN_IF_ERROR(workers_->status());
  return DistributedArray(std::move(layout), std::move(storage));
}

absl::Status WorkerPipelineExecutor::FailureOf(int worker, bool has_failed,
                                               const worker::Failed& failed) const {
  if (!has_failed) return absl::OkStatus();
  return MakeError(static_cast<absl::StatusCode>(failed.code()),
                   fmt::format("{}: {}", workers_->name(worker), failed.message()));
}

absl::StatusOr<std::vector<StoredFile>> WorkerPipelineExecutor::Store(
    std::span<const FileOfTiles> files) {
  std::vector<std::shared_ptr<WorkerAnswer>> answers;
  std::vector<int> writers;
  for (const FileOfTiles& file : files) {
    worker::Request request;
    worker::Store& store = *request.mutable_store();
    store.set_path(file.path);
    for (const NamedTile& tile : file.tiles) {
      const WorkerStorage::Place& place = StorageOf(*tile.array, *workers_).places.front();
      worker::StorePart& part = *store.add_parts();
      part.set_name(tile.name);
      part.set_array(place.array);
      part.set_device(static_cast<int>(tile.device));
    }
    writers.push_back(file.tiles.front().array->storage().worker());
    answers.push_back(workers_->Ask(writers.back(), std::move(request)));
  }
  workers_->Flush();
  // All are waited for: nobody writes any more when this returns.
  std::vector<StoredFile> files_written;
  absl::Status status;
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSIGN_OR_RETURN(const std::vector<worker::Reply> replies, workers_->Wait(*answers[i]));
    const worker::Stored& stored = replies.front().stored();
    status.Update(FailureOf(writers[i], stored.has_failed(), stored.failed()));
    files_written.push_back({.num_bytes = stored.num_bytes(),
                             .hashes = {stored.hashes().begin(), stored.hashes().end()}});
    if (status.ok() && files_written.back().hashes.size() != files[i].tiles.size()) {
      return InternalError("a worker wrote {} tiles of {}", stored.hashes_size(),
                           files[i].tiles.size());
    }
  }
  if (!status.ok()) return status;
  return files_written;
}

absl::StatusOr<std::vector<DistributedArray>> WorkerPipelineExecutor::Restore(
    CheckpointReader& checkpoint, std::span<const TensorOfParameter> tensors) {
  std::map<int, worker::Request> requests;  // by worker
  std::vector<DistributedArray> arrays;
  for (const auto& [parameter, name] : tensors) {
    auto storage = std::make_shared<WorkerStorage>(workers_);
    for (const MeshSlot& at : program().parameters[parameter]) {
      storage->places.push_back({at.mesh, workers_->NewNumber()});
      worker::RestoreArray& array = *requests[at.mesh].mutable_restore()->add_arrays();
      array.set_name(name);
      array.set_array(storage->places.back().array);
      array.set_program(number_);
      array.set_slot(at.slot);
    }
    arrays.emplace_back(ParameterLayout(parameter), std::move(storage));
  }
  std::error_code error;
  const std::string path = std::filesystem::absolute(checkpoint.path(), error).string();
  std::map<int, std::shared_ptr<WorkerAnswer>> answers;
  for (auto& [worker, request] : requests) {
    request.mutable_restore()->set_path(path);
    request.mutable_restore()->set_hash(checkpoint.hash());
    answers[worker] = workers_->Ask(worker, std::move(request));
  }
  workers_->Flush();
  absl::Status status;
  for (const auto& [worker, answer] : answers) {
    ASSIGN_OR_RETURN(const std::vector<worker::Reply> replies, workers_->Wait(*answer));
    const worker::Restored& restored = replies.front().restored();
    status.Update(FailureOf(worker, restored.has_failed(), restored.failed()));
  }
  if (!status.ok()) return status;
  return arrays;
}

absl::StatusOr<std::vector<DistributedArray>> WorkerPipelineExecutor::Run(
    std::span<DistributedArray* const> arguments) {
  const PipelineProgram& program = this->program();
  MINKA_CHECK(arguments.size() == program.parameters.size(), "{} arguments for {} parameters",
              arguments.size(), program.parameters.size());
  while (launched_.size() >= kMostLaunched) RETURN_IF_ERROR(WaitForOldest());
  std::vector<worker::Request> requests(program.meshes.size());
  for (worker::Request& request : requests) {
    request.mutable_step()->set_program(number_);
    request.mutable_step()->set_step(num_steps_);
    request.mutable_step()->set_is_traced(is_tracing_);
  }
  for (size_t parameter = 0; parameter < arguments.size(); ++parameter) {
    const WorkerStorage& storage = StorageOf(*arguments[parameter], *workers_);
    const std::vector<MeshSlot>& places = program.parameters[parameter];
    MINKA_CHECK(storage.places.size() == places.size(), "parameter {} lies on {} meshes, not {}",
                parameter, storage.places.size(), places.size());
    for (size_t i = 0; i < places.size(); ++i) {
      worker::SlotArray& argument = *requests[places[i].mesh].mutable_step()->add_arguments();
      argument.set_slot(places[i].slot);
      argument.set_array(storage.places[i].array);
    }
  }
  std::vector<DistributedArray> results;
  for (int i = 0; i < num_results(); ++i) {
    const MeshSlot& at = program.results[i];
    ArrayLayout layout = ResultLayout(i);
    auto storage = std::make_shared<WorkerStorage>(workers_);
    storage->places.push_back({at.mesh, workers_->NewNumber()});
    worker::SlotArray& result = *requests[at.mesh].mutable_step()->add_results();
    result.set_slot(at.slot);
    result.set_array(storage->places.back().array);
    results.emplace_back(std::move(layout), std::move(storage));
  }
  Launched launched{.start = Clock::now(), .is_traced = is_tracing_};
  for (size_t mesh = 0; mesh < requests.size(); ++mesh) {
    launched.answers.push_back(workers_->Ask(static_cast<int>(mesh), std::move(requests[mesh])));
  }
  workers_->Flush();
  launched_.push_back(std::move(launched));
  ++num_steps_;
  RETURN_IF_ERROR(workers_->status());
  return results;
}

absl::Status WorkerPipelineExecutor::WaitForOldest() {
  const Launched step = std::move(launched_.front());
  launched_.pop_front();
  Clock::time_point end = step.start;
  if (step.is_traced) trace_.clear();
  for (const std::shared_ptr<WorkerAnswer>& answer : step.answers) {
    ASSIGN_OR_RETURN(const std::vector<worker::Reply> replies, workers_->Wait(*answer));
    end = std::max(end, answer->arrived);
    if (step.is_traced) AddTrace(replies.front().stepped(), answer->arrived);
  }
  // A step that was launched during the one before begins behind it.
  const std::chrono::duration<double, std::micro> elapsed = end - std::max(step.start, last_end_);
  last_end_ = end;
  times_.us.push_back(elapsed.count());
  return absl::OkStatus();
}

// Of a worker on another machine, its last instruction ended when its answer came.
void WorkerPipelineExecutor::AddTrace(const worker::Stepped& stepped, Clock::time_point arrived) {
  const auto mesh = static_cast<int>(trace_.size());
  std::vector<InstructionTime>& times = trace_.emplace_back();
  for (const worker::Interval& interval : stepped.intervals()) {
    times.push_back({interval.instruction(), interval.begin_us(), interval.end_us()});
  }
  if (workers_->IsChild(mesh) || times.empty()) return;
  const std::chrono::duration<double, std::micro> here = arrived.time_since_epoch();
  const double offset = here.count() - times.back().end_us;
  for (InstructionTime& time : times) {
    time.begin_us += offset;
    time.end_us += offset;
  }
}

absl::Status WorkerPipelineExecutor::Wait() {
  while (!launched_.empty()) RETURN_IF_ERROR(WaitForOldest());
  return workers_->status();
}

absl::StatusOr<std::vector<worker::Measured>> WorkerPipelineExecutor::Measure(bool reset) {
  std::vector<std::shared_ptr<WorkerAnswer>> answers;
  for (int mesh = 0; mesh < static_cast<int>(program().meshes.size()); ++mesh) {
    worker::Request request;
    request.mutable_measure()->set_reset(reset);
    answers.push_back(workers_->Ask(mesh, std::move(request)));
  }
  workers_->Flush();
  std::vector<worker::Measured> measured;
  for (const std::shared_ptr<WorkerAnswer>& answer : answers) {
    ASSIGN_OR_RETURN(const std::vector<worker::Reply> replies, workers_->Wait(*answer));
    measured.push_back(replies.front().measured());
  }
  return measured;
}

absl::Status WorkerPipelineExecutor::ResetMeasurements() {
  RETURN_IF_ERROR(Wait());
  times_.us.clear();
  return Measure(/*reset=*/true).status();
}

absl::StatusOr<int64_t> WorkerPipelineExecutor::MeasuredPeakBytes() {
  ASSIGN_OR_RETURN(const std::vector<worker::Measured> measured, Measure(/*reset=*/false));
  int64_t peak = 0;
  for (const worker::Measured& of_worker : measured) {
    peak = std::max(peak, of_worker.peak_bytes());
  }
  return peak;
}

}  // namespace minka
