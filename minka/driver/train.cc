#include "minka/driver/train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "minka/base/file.h"
#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "minka/data/digits_data.h"
#include "minka/data/text_data.h"
#include "minka/driver/check.h"
#include "minka/driver/checkpoint.h"
#include "minka/driver/evaluation.h"
#include "minka/driver/inputs.h"
#include "minka/driver/parallelize.h"
#include "minka/frontend/random.h"
#include "minka/profiler/profile.h"

namespace minka {
namespace {

constexpr int kHeldOutBatches = 8;
constexpr double kTemperature = 0.8;
constexpr uint64_t kDefaultSeed = 1;
// A step that is traced finds memory touched and caches filled.
constexpr int64_t kTracedStep = 2;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string NewRunId() {
  std::random_device device;
  return HashText((uint64_t{device()} << 32) | device());
}

bool ReadsTokens(const Model& model) {
  return model.inputs.size() == 2 && model.inputs[0].name == "tokens" &&
         model.inputs[1].name == "labels" && model.inputs[0].num_values >= 256;
}

absl::Status CheckOptions(const TrainOptions& options) {
  if (options.length.num_steps <= 0 && options.length.minutes <= 0) {
    return InvalidArgument("training needs a number of steps or of minutes");
  }
  const Checkpoints& checkpoints = options.checkpoints;
  if (checkpoints.save_every < 0 || checkpoints.keep < 1) {
    return InvalidArgument("checkpoints every {} steps, of which {} are kept, cannot be",
                           checkpoints.save_every, checkpoints.keep);
  }
  if (options.memory_limit_of_data &&
      (*options.memory_limit_of_data <= 0 || *options.memory_limit_of_data > 1)) {
    return InvalidArgument("a memory limit of {} % of data parallelism's is not in (0, 100]",
                           *options.memory_limit_of_data * 100);
  }
  return absl::OkStatus();
}

class Training {
 public:
  Training(const TrainOptions& options, const TrainEvents& events)
      : options_(options), events_(events) {}

  absl::StatusOr<TrainReport> Run() {
    RETURN_IF_ERROR(CheckOptions(options_));
    seed_ = options_.data.seed.value_or(kDefaultSeed);
    ASSIGN_OR_RETURN(named_, MakeModel(options_.model, options_.model_options));
    ASSIGN_OR_RETURN(traced_, Trace(named_.model, named_.optimizer, named_.trace));
    RETURN_IF_ERROR(ReadData());
    RETURN_IF_ERROR(OpenCheckpoints());
    RETURN_IF_ERROR(PlanAndCompile());
    RETURN_IF_ERROR(Check());
    RETURN_IF_ERROR(TrainSteps());
    RETURN_IF_ERROR(Sample());
    return std::move(report_);
  }

 private:
  void Phase(std::string_view phase) const {
    if (events_.on_phase) events_.on_phase(phase);
  }

  absl::Status ReadData() {
    Phase("data");
    if (ReadsTokens(named_.model)) return ReadText();
    if (ReadsDigits(named_.model.inputs)) {
      ASSIGN_OR_RETURN(digits_, LoadDigits(options_.data.path));
      report_.data_source = digits_->source;
      about_.data["hash"] = digits_->hash;
      return absl::OkStatus();
    }
    report_.data_source = "random inputs";
    if (options_.data.path.empty()) return absl::OkStatus();
    return InvalidArgument(
        "{} reads neither text nor images; it trains on random inputs, not on {}", options_.model,
        options_.data.path);
  }

  absl::Status ReadText() {
    ASSIGN_OR_RETURN(text_, LoadText(options_.data.path));
    const int64_t sequence = named_.model.inputs[0].shape.dims[1];
    if (text_->held_out().size() <= static_cast<size_t>(sequence)) {
      return InvalidArgument("{} is too short: a tenth of it must be longer than a sequence of {}",
                             text_->source, sequence);
    }
    report_.data_source = text_->source;
    report_.bigram_entropy = BigramEntropy(text_->text);
    about_.data["hash"] = HashText(StableHash(text_->text));
    return absl::OkStatus();
  }

  // Refuses what would fail only after planning or hours of training.
  absl::Status OpenCheckpoints() {
    about_.model = options_.model;
    about_.options = options_.request.options;
    about_.data["source"] = report_.data_source;
    const Checkpoints& checkpoints = options_.checkpoints;
    if (!checkpoints.resume_dir.empty()) RETURN_IF_ERROR(Resume(checkpoints.resume_dir));
    if (checkpoints.save_dir.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(JoinFolder(ListCheckpoints(checkpoints.save_dir)));
    return CheckCanSave(checkpoints.save_dir);
  }

  // `present`: what the folder to save to holds.
  absl::Status JoinFolder(const std::vector<ListedCheckpoint>& present) {
    about_.run = NewRunId();
    if (present.empty()) return absl::OkStatus();
    const ListedCheckpoint& newest = present.back();
    if (!resumed_) {
      return FailedPrecondition(
          "{} is the checkpoint of another run, and this one would mix with it; resume it, or save "
          "to another folder",
          newest.path);
    }
    if (newest.step > report_.first_step) {
      return FailedPrecondition(
          "{} has more steps behind it than {}, which is resumed, and what is saved would mix with "
          "it; resume it, save to another folder, or move it away",
          newest.path, resumed_->path());
    }
    std::error_code ignored;
    const bool goes_on = std::filesystem::equivalent(newest.path, resumed_->path(), ignored);
    if (goes_on && !resumed_->manifest().run.empty()) about_.run = resumed_->manifest().run;
    return absl::OkStatus();
  }

  absl::Status Resume(const std::string& path) {
    ASSIGN_OR_RETURN(CheckpointReader checkpoint, CheckpointReader::Open(path));
    const CheckpointManifest& manifest = checkpoint.manifest();
    RETURN_IF_ERROR(CheckFits(checkpoint, traced_.step));
    if (options_.data.seed && *options_.data.seed != manifest.seed) {
      return InvalidArgument("{} was trained with seed {}, not {}", checkpoint.path(),
                             manifest.seed, *options_.data.seed);
    }
    if (options_.length.num_steps > 0 && manifest.step >= options_.length.num_steps) {
      return InvalidArgument("{} has {} steps behind it, so that none of {} is left",
                             checkpoint.path(), manifest.step, options_.length.num_steps);
    }
    seed_ = manifest.seed;
    report_.first_step = manifest.step;
    report_.resumed_from = checkpoint.path();
    NoteDifferences(manifest);
    resumed_.emplace(std::move(checkpoint));
    return absl::OkStatus();
  }

  // What makes the loss go on otherwise than in the run that saved.
  void NoteDifferences(const CheckpointManifest& manifest) {
    if (manifest.data != about_.data) {
      report_.notes.push_back(fmt::format(
          "the data are {}, the checkpoint's were {} or others of "
          "that name",
          report_.data_source,
          manifest.data.contains("source") ? manifest.data.at("source") : std::string("unnamed")));
    }
    for (const char* flag :
         {"global-batch", "dropout", "dtype", "optimizer", "learning-rate", "weight-decay", "decay",
          "warmup", "decay-steps", "clip-norm", "loss-scale", "micro-batches", "per-micro-batch"}) {
      const auto text = [&](const std::map<std::string, std::string>& options) {
        const auto found = options.find(flag);
        return found == options.end() ? std::string("the default") : found->second;
      };
      const std::string now = text(about_.options), then = text(manifest.options);
      if (now != then) {
        report_.notes.push_back(
            fmt::format("--{} is {}, the checkpoint was made with {}", flag, now, then));
      }
    }
  }

  // The batch of a step; random inputs are one of eight batches, so that there is something to
  // learn.
  absl::StatusOr<Batch> TrainingBatch(int64_t step) const {
    const uint64_t seed = MixKey(seed_) + static_cast<uint64_t>(step);
    if (text_) {
      const Shape& shape = named_.model.inputs[0].shape;
      return DrawTextBatch(text_->training(), shape.dims[0], shape.dims[1], seed);
    }
    if (digits_) return DrawDigitsBatch(*digits_, named_.model.inputs, seed);
    return RandomBatch(traced_.step, seed_ + step % 8);
  }

  absl::Status PlanAndCompile() {
    PlanRequest request = options_.request;
    if (request.cluster.device.name.empty()) {
      request.cluster = Cluster::Local(options_.num_devices);
    }
    const LocalDevicesOptions local{.num_devices = options_.num_devices,
                                    .plugin_path = options_.plugin_path,
                                    .kind = request.cluster.platform()};
    LazyLocalDevices devices(local);
    if (request.cost_model.kind == CostModelKind::kMeasured && !request.cost_model.calibration) {
      Phase("profile");
      // Closed behind it, so that no memory of a GPU is held where workers need it.
      ASSIGN_OR_RETURN(const LocalDevices opened, OpenLocalDevices(local));
      ASSIGN_OR_RETURN(
          request.cost_model.calibration,
          LoadOrProfile(opened, {.num_devices = options_.num_devices,
                                 .on_progress = [&](std::string_view what, int done, int total) {
                                   Phase(fmt::format("profile of this machine, made once: {}/{} {}",
                                                     done, total, what));
                                 }}));
    }
    std::optional<Plan> data;
    if (!request.search.memory_limit_bytes && options_.memory_limit_of_data) {
      ASSIGN_OR_RETURN(data, CompiledDataPlan(request, devices));
      request.search.memory_limit_bytes = static_cast<int64_t>(
          *options_.memory_limit_of_data * static_cast<double>(data->peak_memory_bytes));
    }
    report_.memory_limit_bytes = request.search.memory_limit_bytes;
    if (request.pipeline) return PlanAndCompilePipeline(request, devices);
    Phase(options_.workers ? "workers" : "devices");
    ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                     StartSession({options_.num_devices}, options_.workers, devices));
    PlanResult considered;
    const PlanSource source = [&](const Step& step, std::optional<int64_t> limit) {
      return Search(step, request, limit, considered);
    };
    const auto start = Clock::now();
    ASSIGN_OR_RETURN(CompiledStep compiled,
                     Compile(traced_.step, source, *session,
                             {.preparation = {.micro_batches = request.micro_batches},
                              .memory_limit_bytes = request.search.memory_limit_bytes,
                              .dump_dir = options_.dump_dir,
                              .configuration = request.options,
                              .on_step = events_.on_phase}));
    report_.compile_seconds = SecondsSince(start);
    report_.plan = compiled.plan;
    report_.prepared = compiled.prepared;
    report_.total_allocation_bytes = compiled.plan.peak_memory_bytes;
    if (!options_.plan_path.empty()) {
      RETURN_IF_ERROR(
          WriteFile(options_.plan_path, PlanToJson(compiled.plan, compiled.prepared.module)));
    }
    considered.candidates[considered.best].plan = compiled.plan;
    if (data) ShowCompiled(*data, *request.search.memory_limit_bytes, considered);
    if (events_.on_plan) events_.on_plan(considered, compiled.plan);
    run_.emplace(traced_.step, std::move(compiled), std::move(session), devices,
                 traced_.initializers);
    return CompileEvaluation(request);
  }

  absl::Status CompileEvaluation(const PlanRequest& request) {
    if (!text_ && !digits_) return absl::OkStatus();
    Phase("compile the evaluation");
    ASSIGN_OR_RETURN(const TracedStep traced, TraceEvaluation(named_.model, named_.trace));
    ASSIGN_OR_RETURN(Evaluation evaluation,
                     Evaluation::Create(traced, *run_, request.cluster, request.cost_model));
    evaluation_.emplace(std::move(evaluation));
    return absl::OkStatus();
  }

  absl::Status PlanAndCompilePipeline(const PlanRequest& request, LazyLocalDevices& devices) {
    Phase("plan");
    const auto start = Clock::now();
    ASSIGN_OR_RETURN(PlannedPipeline pipeline, PlanPipeline(traced_.step, request));
    Phase("xla");
    ASSIGN_OR_RETURN(std::unique_ptr<Session> session,
                     StartSession(pipeline.num_devices(), options_.workers, devices));
    ASSIGN_OR_RETURN(auto executor, CompilePipeline(pipeline, *session));
    report_.compile_seconds = SecondsSince(start);
    report_.pipeline = pipeline;
    report_.prepared = pipeline.prepared;
    report_.total_allocation_bytes = pipeline.plan.peak_memory_bytes;
    if (events_.on_pipeline) events_.on_pipeline(pipeline);
    run_.emplace(traced_.step, std::move(pipeline), std::move(session), std::move(executor),
                 devices, traced_.initializers);
    if (!options_.plan_path.empty()) RETURN_IF_ERROR(run_->SavePlan(options_.plan_path));
    if (!options_.dump_dir.empty()) RETURN_IF_ERROR(run_->Dump(options_.dump_dir));
    return CompileEvaluation(request);
  }

  PlanRequest DataRequest(PlanRequest request) const {
    request.micro_batches.num_micro_batches =
        std::max<int64_t>(request.micro_batches.num_micro_batches, 1);  // not to be chosen here
    request.methods = {Method::kData};
    request.meshes = {Mesh({{"data", options_.num_devices}})};
    request.search.pins.clear();
    request.search.limits = {};
    request.search.memory_limit_bytes.reset();
    return request;
  }

  // What data parallelism needs, on the compiled program: a limit given as a part of it is a part
  // of that.
  absl::StatusOr<Plan> CompiledDataPlan(const PlanRequest& asked, LazyLocalDevices& devices) {
    Phase("compile data parallelism");
    const PlanRequest request = DataRequest(asked);
    const PlanSource source = [&](const Step& step, std::optional<int64_t>) -> SearchResult<Plan> {
      ASSIGN_OR_RETURN(PlanResult planned, PlanStep(step, request));
      return std::move(planned.candidates.front().plan);
    };
    ASSIGN_OR_RETURN(LocalDevices opened, devices.Get());
    LocalSession session(std::move(opened));
    ASSIGN_OR_RETURN(CompiledStep compiled,
                     Compile(traced_.step, source, session,
                             {.preparation = {.micro_batches = request.micro_batches}}));
    return std::move(compiled.plan);
  }

  // Puts the compiled program's memory in the row of data parallelism, whose estimate stood there.
  static void ShowCompiled(const Plan& data, int64_t limit, PlanResult& considered) {
    for (PlanCandidate& candidate : considered.candidates) {
      if (candidate.method != Method::kData || candidate.mesh.num_axes() != 1) continue;
      candidate.plan.peak_memory_bytes = data.peak_memory_bytes;
      candidate.plan.memory_tier = data.memory_tier;
      candidate.fits = data.peak_memory_bytes <= limit;
    }
  }

  // The best plan under the limit; data parallelism is planned beside it, to compare.
  SearchResult<Plan> Search(const Step& step, const PlanRequest& asked,
                            std::optional<int64_t> limit, PlanResult& considered) {
    PlanRequest request = asked;
    request.search.memory_limit_bytes = limit;
    ASSIGN_OR_RETURN(considered, PlanStep(step, request));
    Plan best = considered.candidates[considered.best].plan;
    if (std::ranges::count(request.methods, Method::kData) > 0) return best;
    auto data = PlanStep(step, DataRequest(asked));
    if (data.ok()) {
      PlanCandidate& candidate = data->candidates.front();
      candidate.fits = !limit || candidate.plan.peak_memory_bytes <= *limit;
      considered.candidates.insert(considered.candidates.begin(), std::move(candidate));
      ++considered.best;
    }
    return best;
  }

  absl::Status Check() {
    if (options_.check_steps <= 0) return absl::OkStatus();
    Phase("check against one device");
    const uint64_t seed = seed_;
    const StepInputs inputs = [&](int step) -> absl::StatusOr<ParameterValues> {
      ParameterValues values = InitialValues(traced_.step, traced_.initializers, seed);
      ASSIGN_OR_RETURN(const Batch batch, TrainingBatch(step));
      ASSIGN_OR_RETURN(const ParameterValues inputs, run_->StepValues(batch, seed, step));
      for (size_t i = 0; i < values.size(); ++i) {
        if (inputs[i].bytes) values[i] = inputs[i];
      }
      return values;
    };
    ASSIGN_OR_RETURN(report_.check, CheckAgainstOneDevice(*run_, inputs, options_.check_steps));
    if (report_.check->ok()) return absl::OkStatus();
    return FailedPrecondition(
        "after {} steps the plan computes something else than one device:\n{}",
        options_.check_steps, report_.check->Failures());
  }

  double Fraction(int64_t step, double seconds) const {
    const TrainingLength& length = options_.length;
    const double by_steps = length.num_steps > 0
                                ? static_cast<double>(step) / static_cast<double>(length.num_steps)
                                : 0;
    const double by_time = length.minutes > 0 ? seconds / (60 * length.minutes) : 0;
    return std::min(1.0, std::max(by_steps, by_time));
  }

  bool ShouldEvaluate(int64_t step, double fraction, double last_fraction) const {
    if (!evaluation_) return false;
    if (fraction >= 1) return true;
    if (options_.length.evaluate_every > 0) return step % options_.length.evaluate_every == 0;
    return std::floor(fraction * 10) > std::floor(last_fraction * 10);
  }

  absl::Status TrainSteps() {
    const auto create = Clock::now();
    ASSIGN_OR_RETURN(
        state_, resumed_ ? RestoreCheckpoint(*resumed_, run_->runner()) : run_->Initialize(seed_));
    report_.create_state_seconds = SecondsSince(create);
    RETURN_IF_ERROR(run_->runner().executor().ResetMeasurements());
    Phase("train");
    const auto start = Clock::now();
    double evaluation_seconds = 0, fraction = 0;
    ASSIGN_OR_RETURN(PlacedBatch next, PlaceBatch(report_.first_step));
    for (int64_t step = report_.first_step; fraction < 1;) {
      SetTracing(step == report_.first_step + kTracedStep);
      ASSIGN_OR_RETURN(StepResult result, run_->RunPlaced(std::move(state_), std::move(next)));
      state_ = std::move(result.state);
      // While the step runs.
      ASSIGN_OR_RETURN(next, PlaceBatch(step + 1));
      ASSIGN_OR_RETURN(const double loss, result.Loss());
      report_.losses.push_back(loss);
      ++step;
      const double last_fraction = std::exchange(fraction, Fraction(step, SecondsSince(start)));
      TrainProgress progress{.step = step, .fraction = fraction, .loss = loss};
      if (ShouldEvaluate(step, fraction, last_fraction)) {
        RETURN_IF_ERROR(NotePeak());
        const auto evaluation = Clock::now();
        RETURN_IF_ERROR(Evaluate());
        progress.held_out_loss = report_.held_out_loss;
        evaluation_seconds += SecondsSince(evaluation);
      }
      progress.seconds = SecondsSince(start);
      progress.tokens_per_second = TokensPerStep() * static_cast<double>(report_.losses.size()) /
                                   (progress.seconds - evaluation_seconds);
      report_.tokens_per_second = progress.tokens_per_second;
      report_.num_steps = step;
      if (events_.on_progress) events_.on_progress(progress);
      if (ShouldSave(step, fraction)) RETURN_IF_ERROR(Save());
    }
    RETURN_IF_ERROR(NotePeak());
    report_.seconds = SecondsSince(start);
    RETURN_IF_ERROR(run_->runner().executor().Wait());
    if (auto* const executor = Traced()) report_.trace = TraceOf(*executor);
    report_.step_times = run_->runner().executor().times();
    return absl::OkStatus();
  }

  absl::StatusOr<PlacedBatch> PlaceBatch(int64_t step) {
    ASSIGN_OR_RETURN(const Batch batch, TrainingBatch(step));
    return run_->Place(batch);
  }

  // Null: nothing is to be traced.
  PipelineExecutor* Traced() {
    if (!options_.traces_step) return nullptr;
    return dynamic_cast<PipelineExecutor*>(&run_->runner().executor());
  }
  void SetTracing(bool is_tracing) {
    if (auto* const executor = Traced()) executor->set_is_tracing(is_tracing);
  }

  bool ShouldSave(int64_t step, double fraction) const {
    const Checkpoints& checkpoints = options_.checkpoints;
    if (checkpoints.save_dir.empty()) return false;
    return fraction >= 1 || (checkpoints.save_every > 0 && step % checkpoints.save_every == 0);
  }

  absl::Status Save() {
    RETURN_IF_ERROR(NotePeak());
    const Checkpoints& checkpoints = options_.checkpoints;
    ASSIGN_OR_RETURN(report_.saved_to,
                     SaveCheckpoint({.folder = checkpoints.save_dir, .keep = checkpoints.keep},
                                    about_, run_->runner(), state_));
    return absl::OkStatus();
  }

  // The training's peak: taken before the first evaluation, which shares the meter.
  absl::Status NotePeak() {
    if (report_.measured_peak_memory_bytes > 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(report_.measured_peak_memory_bytes,
                     run_->runner().executor().MeasuredPeakBytes());
    return absl::OkStatus();
  }

  // Examples where the model reads no tokens.
  double TokensPerStep() const {
    const Shape& shape = named_.model.inputs[0].shape;
    return static_cast<double>(text_ ? shape.num_elements() : shape.dims[0]);
  }

  Batch HeldOutBatch(int64_t index) const {
    if (digits_) {
      return HeldOutDigitsBatch(*digits_, named_.model.inputs, index, kHeldOutBatches);
    }
    const Shape& shape = named_.model.inputs[0].shape;
    return SpreadTextBatch(text_->held_out(), shape.dims[0], shape.dims[1], index, kHeldOutBatches);
  }

  absl::Status Evaluate() {
    const int loss = evaluation_->FindResult("loss");
    const int accuracy = evaluation_->FindResult("accuracy");
    double loss_sum = 0, accuracy_sum = 0;
    for (int i = 0; i < kHeldOutBatches; ++i) {
      ASSIGN_OR_RETURN(const std::vector<Literal> results,
                       evaluation_->Run(state_, HeldOutBatch(i)));
      loss_sum += ScalarValue(results[loss]);
      if (accuracy >= 0) accuracy_sum += ScalarValue(results[accuracy]);
    }
    report_.held_out_loss = loss_sum / kHeldOutBatches;
    if (accuracy >= 0) report_.held_out_accuracy = accuracy_sum / kHeldOutBatches;
    return absl::OkStatus();
  }

  absl::Status Sample() {
    if (!text_ || !evaluation_ || options_.sample_bytes <= 0) return absl::OkStatus();
    Phase("generate text");
    const int logits_result = evaluation_->FindResult("logits");
    if (logits_result < 0) return absl::OkStatus();
    const Shape& shape = named_.model.inputs[0].shape;
    const auto sequence = static_cast<size_t>(shape.dims[1]);
    std::string text(text_->held_out().substr(0, sequence / 2));
    const size_t prompt = text.size();
    const uint64_t key = SiteKey(MixKey(seed_), SiteConstant("sample"));
    for (int i = 0; i < options_.sample_bytes; ++i) {
      const size_t start = text.size() > sequence ? text.size() - sequence : 0;
      std::string window = text.substr(start);
      const size_t last = window.size() - 1;
      window.resize(sequence + 1, ' ');
      const Batch batch = SpreadTextBatch(window, shape.dims[0], shape.dims[1], 0, 1);
      ASSIGN_OR_RETURN(const std::vector<Literal> results, evaluation_->Run(state_, batch));
      const Literal& logits = results[logits_result];
      const double uniform = std::ldexp(SquaresBits(static_cast<uint64_t>(i), key), -32);
      text += Choose(logits, static_cast<int64_t>(last) * logits.shape.dims[2], uniform);
    }
    report_.sample = text.substr(prompt);
    return absl::OkStatus();
  }

  // A byte drawn by the softmax of the first 256 logits from `offset` on.
  static char Choose(const Literal& logits, int64_t offset, double uniform) {
    std::vector<double> weights;
    for (int64_t i = 0; i < 256; ++i) {
      weights.push_back(ElementAsDouble(logits, offset + i) / kTemperature);
    }
    const double largest = *std::ranges::max_element(weights);
    for (double& weight : weights) weight = std::exp(weight - largest);
    double rest = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < weights.size(); ++i) {
      rest -= weights[i];
      if (rest <= 0) return static_cast<char>(i);
    }
    return ' ';
  }

  const TrainOptions& options_;
  const TrainEvents& events_;
  TrainReport report_;
  NamedModel named_;
  TracedStep traced_;
  uint64_t seed_ = kDefaultSeed;
  std::optional<TextData> text_;
  std::optional<DigitsData> digits_;
  CheckpointManifest about_;
  std::optional<CheckpointReader> resumed_;
  std::optional<Parallelized> run_;
  std::optional<Evaluation> evaluation_;
  State state_;
};

}  // namespace

absl::StatusOr<TrainReport> Train(const TrainOptions& options, const TrainEvents& events) {
  return Training(options, events).Run();
}

}  // namespace minka
