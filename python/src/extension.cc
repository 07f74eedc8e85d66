// The module minka._extension: what Python calls of minka. Everything that knows JAX is Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "executable.h"
#include "jax_program.h"
#include "job.h"
#include "minka/runtime/pjrt/platform.h"
#include "planned_step.h"

namespace nb = nanobind;

// Of arrays, whose vector says otherwise of itself.
template <>
struct nanobind::detail::is_copy_constructible<minka::ArrayHandle> : std::false_type {};

namespace minka {
namespace {

// Dense bytes; Python says what they mean, because the buffer protocol knows no bfloat16.
using HostBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Becomes a minka.Error.
struct StatusError {
  absl::Status status;
};

void RaisePythonError(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const StatusError& error) {
    const nb::module_ errors = nb::module_::import_("minka.errors");
    const std::string code = absl::StatusCodeToString(error.status.code());
    const nb::object raised = errors.attr("of_status")(code, Message(error.status));
    PyErr_SetObject(errors.attr("Error").ptr(), raised.ptr());
  }
}

void Check(const absl::Status& status) {
  if (!status.ok()) throw StatusError{status};
}

template <typename T>
T ValueOf(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

std::span<const uint8_t> SpanOf(const HostBytes& bytes) { return {bytes.data(), bytes.size()}; }

// An array of bytes that keeps the contents.
nb::object ToNumpy(const HostArray& array) {
  const std::span<const char> bytes = array.contents.bytes;
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t size = bytes.size();
  auto kept = std::make_unique<std::shared_ptr<const void>>(array.contents.owner);
  const nb::capsule owner(kept.release(), [](void* pointer) noexcept {
    delete static_cast<std::shared_ptr<const void>*>(pointer);
  });
  return nb::cast(nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(data, {size}, owner));
}

void CheckIsThere(const ArrayHandle& handle, const std::string& name) {
  if (!handle.empty()) return;
  Check(FailedPrecondition("{} was consumed by a step; use what that returned", name));
}

// Fetches the array, which may be consumed meanwhile.
std::unique_ptr<Job> StartToHost(const ArrayHandle& handle, const std::string& name) {
  CheckIsThere(handle, name);
  return std::make_unique<Job>(
      [wait = handle.StartToLend()](const std::stop_token&,
                                    const OnPhase&) -> absl::StatusOr<JobResult> { return wait(); },
      Job::AtEnd::kLeave);
}

std::vector<ArrayHandle> Run(Executable& executable, const std::vector<ArrayHandle*>& resident,
                             const std::vector<int>& parameters,
                             const std::vector<HostBytes>& values) {
  std::vector<StepInput> inputs;
  for (size_t i = 0; i < parameters.size(); ++i) {
    inputs.push_back({parameters[i], SpanOf(values[i])});
  }
  const nb::gil_scoped_release release;
  return ValueOf(executable.Run(resident, inputs));
}

std::unique_ptr<Job> StartParallelize(const ParallelizeRequest& request) {
  return std::make_unique<Job>(
      [request](const std::stop_token& stop, const OnPhase& on_phase) -> absl::StatusOr<JobResult> {
        return Executable::Create(request, stop, on_phase);
      },
      Job::AtEnd::kWait);
}

// executable: null: the step is only planned.
std::unique_ptr<Job> StartExplain(const ParallelizeRequest& request, const std::string& tensor,
                                  const std::string& operation, const std::optional<int>& stage,
                                  const Executable* executable) {
  const ExplainQuestion question{.stage = stage, .tensor = tensor, .operation = operation};
  return std::make_unique<Job>(
      [=](const std::stop_token& stop, const OnPhase& on_phase) -> absl::StatusOr<JobResult> {
        return executable ? executable->Explain(request, question, stop, on_phase)
                          : ExplainRequest(request, question, stop, on_phase);
      },
      Job::AtEnd::kWait);
}

std::unique_ptr<Job> StartPlan(const ParallelizeRequest& request, const std::string& cluster) {
  return std::make_unique<Job>(
      [=](const std::stop_token& stop, const OnPhase& on_phase) -> absl::StatusOr<JobResult> {
        return PlannedStep::Create(request, cluster, stop, on_phase);
      },
      Job::AtEnd::kWait);
}

std::unique_ptr<Job> StartExplainPlanned(const PlannedStep& planned, const std::string& tensor,
                                         const std::string& operation,
                                         const std::optional<int>& stage) {
  const ExplainQuestion question{.stage = stage, .tensor = tensor, .operation = operation};
  return std::make_unique<Job>(
      [&planned, question](const std::stop_token& stop, const OnPhase& on_phase)
          -> absl::StatusOr<JobResult> { return planned.Explain(question, stop, on_phase); },
      Job::AtEnd::kWait);
}

std::unique_ptr<Job> StartCheck(Executable& executable, const std::vector<HostBytes>& values,
                                int num_steps) {
  std::vector<std::span<const uint8_t>> bytes;
  for (const HostBytes& value : values) bytes.push_back(SpanOf(value));
  std::vector<Literal> literals = ValueOf(executable.Values(bytes));
  return std::make_unique<Job>(
      [&executable, literals = std::move(literals), num_steps](
          const std::stop_token&, const OnPhase& on_phase) -> absl::StatusOr<JobResult> {
        on_phase("check");
        return executable.Check(literals, num_steps);
      },
      Job::AtEnd::kWait);
}

// state: as Run takes `resident`.
std::unique_ptr<Job> StartSave(Executable& executable, const std::vector<ArrayHandle*>& state,
                               const std::string& folder, const std::string& model, int64_t step,
                               int keep) {
  const SaveRequest request{.folder = folder, .model = model, .step = step, .keep = keep};
  return std::make_unique<Job>(
      [&executable, state, request](const std::stop_token& stop,
                                    const OnPhase& on_phase) -> absl::StatusOr<JobResult> {
        on_phase("save");
        return executable.Save(request, state, stop);
      },
      Job::AtEnd::kWait);
}

std::unique_ptr<Job> StartRestore(Executable& executable, const std::string& path) {
  return std::make_unique<Job>(
      [&executable, path](const std::stop_token& stop,
                          const OnPhase& on_phase) -> absl::StatusOr<JobResult> {
        on_phase("restore");
        return executable.Restore(path, stop);
      },
      Job::AtEnd::kWait);
}

std::vector<std::string> CopiesOf(const std::vector<HostBytes>& values) {
  std::vector<std::string> bytes;
  for (const HostBytes& value : values) {
    bytes.emplace_back(reinterpret_cast<const char*>(value.data()), value.size());
  }
  return bytes;
}

std::unique_ptr<Job> StartMakeState(Executable& executable, const ParallelizeRequest& init,
                                    const std::vector<int>& parameters,
                                    const std::vector<HostBytes>& values) {
  return std::make_unique<Job>(
      [&executable, init, parameters, bytes = CopiesOf(values)](
          const std::stop_token&, const OnPhase& on_phase) -> absl::StatusOr<JobResult> {
        on_phase("make state");
        return executable.MakeState(init, parameters, bytes);
      },
      Job::AtEnd::kWait);
}

std::unique_ptr<Job> StartFollow(const Executable& executable, const ParallelizeRequest& request) {
  return std::make_unique<Job>(
      [&executable, request](const std::stop_token&,
                             const OnPhase& on_phase) -> absl::StatusOr<JobResult> {
        on_phase("plan and compile");
        return executable.Follow(request);
      },
      Job::AtEnd::kWait);
}

std::unique_ptr<Job> StartRunOfFollower(Follower& follower, const std::vector<ArrayHandle*>& state,
                                        const std::vector<HostBytes>& values) {
  return std::make_unique<Job>(
      [&follower, state, bytes = CopiesOf(values)](const std::stop_token&, const OnPhase&)
          -> absl::StatusOr<JobResult> { return follower.Run(state, bytes); },
      Job::AtEnd::kWait);
}

nb::object TakeResult(Job& job) {
  JobResult result = ValueOf(job.Take());
  if (auto* const executable = std::get_if<std::unique_ptr<Executable>>(&result)) {
    return nb::cast(std::move(*executable));
  }
  if (auto* const handles = std::get_if<std::vector<ArrayHandle>>(&result)) {
    return nb::cast(std::move(*handles));
  }
  if (auto* const follower = std::get_if<std::unique_ptr<Follower>>(&result)) {
    return nb::cast(std::move(*follower));
  }
  if (auto* const planned = std::get_if<std::unique_ptr<PlannedStep>>(&result)) {
    return nb::cast(std::move(*planned));
  }
  if (const auto* const text = std::get_if<std::string>(&result)) return nb::cast(*text);
  if (const auto* const literals = std::get_if<std::vector<Literal>>(&result)) {
    nb::list arrays;
    for (const Literal& literal : *literals) arrays.append(ToNumpy(literal));
    return arrays;
  }
  return ToNumpy(std::get<HostArray>(result));
}

void BindRequest(nb::module_& module) {
  using Request = ParallelizeRequest;
  nb::class_<Request>(module, "ParallelizeRequest")
      .def(nb::init<>())
      .def_prop_rw(
          "hlo",
          [](const Request& request) { return nb::bytes(request.hlo.data(), request.hlo.size()); },
          [](Request& request, const nb::bytes& hlo) {
            request.hlo.assign(hlo.c_str(), hlo.size());
          })
      .def_rw("description", &Request::description)
      .def_rw("num_devices", &Request::num_devices)
      .def_rw("gpu", &Request::gpu)
      .def_rw("gpu_memory_bytes", &Request::gpu_memory_bytes)
      .def_rw("calibration", &Request::calibration)
      .def_rw("method", &Request::method)
      .def_rw("mesh", &Request::mesh)
      .def_rw("num_micro_batches", &Request::num_micro_batches)
      .def_rw("per_micro_batch", &Request::per_micro_batch)
      .def_rw("narrow_sums", &Request::narrow_sums)
      .def_rw("peak_memory_bytes", &Request::peak_memory_bytes, nb::arg().none())
      .def_rw("pins", &Request::pins)
      .def_rw("remat", &Request::remat)
      .def_rw("num_layers", &Request::num_layers)
      .def_rw("layer_starts", &Request::layer_starts)
      .def_rw("num_stages", &Request::num_stages)
      .def_rw("stage_of_layer", &Request::stage_of_layer)
      .def_rw("submeshes", &Request::submeshes)
      .def_rw("submesh_choices", &Request::submesh_choices)
      .def_rw("meshes", &Request::meshes)
      .def_rw("schedule", &Request::schedule)
      .def_rw("plan_path", &Request::plan_path)
      .def_rw("hosts_path", &Request::hosts_path)
      .def_rw("worker_binary", &Request::worker_binary)
      .def_rw("plugin_path", &Request::plugin_path);
}

void BindArray(nb::module_& module) {
  nb::class_<ArrayHandle>(module, "Array")
      .def_ro("parameter", &ArrayHandle::parameter)
      .def_prop_ro("is_consumed", [](const ArrayHandle& handle) { return handle.empty(); })
      .def("layout",
           [](const ArrayHandle& handle, const std::string& name) {
             CheckIsThere(handle, name);
             return handle.ToString();
           })
      .def("start_to_host", &StartToHost);
}

void BindJob(nb::module_& module) {
  nb::class_<Job>(module, "Job")
      .def("wait", &Job::Wait, nb::arg("seconds"), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("phase", &Job::phase)
      .def_prop_ro("can_be_left", &Job::can_be_left)
      .def("stop", &Job::Stop, nb::call_guard<nb::gil_scoped_release>())
      .def("result", &TakeResult);
}

// What minka.plan.Plan asks of what has a plan.
template <typename Planned>
nb::class_<Planned> BindPlan(nb::class_<Planned> type) {
  return type.def("plan_json", &Planned::PlanJson, nb::call_guard<nb::gil_scoped_release>())
      .def("plan_table",
           [](const Planned& planned) {
             const nb::gil_scoped_release release;
             return ValueOf(planned.PlanTable());
           })
      .def("candidates_json", [](const Planned& planned) {
        const nb::gil_scoped_release release;
        return ValueOf(planned.CandidatesJson());
      });
}

void BindExecutable(nb::module_& module) {
  BindPlan(nb::class_<Executable>(module, "Executable"))
      .def("put",
           [](Executable& executable, int parameter, const HostBytes& bytes) {
             const nb::gil_scoped_release release;
             return ValueOf(executable.Put(parameter, SpanOf(bytes)));
           })
      .def("run", &Run, nb::arg("resident"), nb::arg("parameters"), nb::arg("values"))
      .def("is_at", &Executable::IsAt)
      .def("start_check", &StartCheck, nb::arg("values"), nb::arg("num_steps"),
           nb::keep_alive<0, 1>())
      .def("start_save", &StartSave, nb::arg("state"), nb::arg("folder"), nb::arg("model"),
           nb::arg("step"), nb::arg("keep"), nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>())
      .def("start_make_state", &StartMakeState, nb::arg("init"), nb::arg("parameters"),
           nb::arg("values"), nb::keep_alive<0, 1>())
      .def("start_restore", &StartRestore, nb::arg("path"), nb::keep_alive<0, 1>())
      .def("start_follow", &StartFollow, nb::arg("request"), nb::keep_alive<0, 1>())
      .def("dump", [](Executable& executable, const std::string& folder) {
        const nb::gil_scoped_release release;
        Check(executable.Dump(folder));
      });
}

void BindPlannedStep(nb::module_& module) {
  BindPlan(nb::class_<PlannedStep>(module, "PlannedStep"))
      .def("start_explain", &StartExplainPlanned, nb::arg("tensor"), nb::arg("operation"),
           nb::arg("stage").none(), nb::keep_alive<0, 1>());
  module.def("start_plan", &StartPlan, nb::arg("request"), nb::arg("cluster"));
  module.def(
      "num_devices_of",
      [](const std::string& cluster, bool is_pipeline) {
        return ValueOf(NumDevicesOf(cluster, is_pipeline));
      },
      nb::arg("cluster"), nb::arg("is_pipeline"));
}

// By JAX's names; nullopt: one that nothing is known of, or none.
std::optional<Platform> PlatformOfJax(const std::string& name) {
  if (name == "cpu") return Platform::kCpu;
  if (name == "gpu") return Platform::kCuda;
  return std::nullopt;
}

void BindJaxProgram(nb::module_& module) {
  nb::class_<SplitArray>(module, "SplitArray")
      .def_ro("shape", &SplitArray::shape)
      .def_ro("axes", &SplitArray::axes);
  nb::class_<JaxProgram>(module, "JaxProgram")
      .def_prop_ro("hlo",
                   [](const JaxProgram& program) {
                     return nb::bytes(program.hlo().data(), program.hlo().size());
                   })
      .def_prop_ro("mesh", &JaxProgram::mesh)
      .def_prop_ro("parameters", &JaxProgram::parameters)
      .def_prop_ro("results", &JaxProgram::results)
      .def("plan_json", &JaxProgram::PlanJson)
      .def("plan_table", &JaxProgram::PlanTable)
      .def("dump", [](const JaxProgram& program, const std::string& folder) {
        Check(program.Dump(folder));
      });
  module.def("plan_for_jax", [](const ParallelizeRequest& request, const std::string& cluster,
                                const std::string& platform) {
    const nb::gil_scoped_release release;
    return ValueOf(JaxProgram::Create(request, cluster, PlatformOfJax(platform)));
  });
  module.def("compiler_options", [](const std::string& platform) -> pjrt::Overrides {
    const std::optional<Platform> known = PlatformOfJax(platform);
    return known ? pjrt::RequiredOverrides(*known) : pjrt::Overrides();
  });
}

void BindFollower(nb::module_& module) {
  nb::class_<Follower>(module, "Follower")
      .def("start_run", &StartRunOfFollower, nb::arg("state"), nb::arg("values"),
           nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>());
}

}  // namespace
}  // namespace minka

NB_MODULE(_extension, module) {
  nb::register_exception_translator(minka::RaisePythonError);
  minka::BindRequest(module);
  minka::BindArray(module);
  minka::BindJob(module);
  minka::BindExecutable(module);
  minka::BindPlannedStep(module);
  minka::BindJaxProgram(module);
  minka::BindFollower(module);
  module.def("start_parallelize", &minka::StartParallelize, nb::arg("request"));
  module.def("start_explain", &minka::StartExplain, nb::arg("request"), nb::arg("tensor"),
             nb::arg("operation"), nb::arg("stage").none(), nb::arg("executable").none(),
             nb::keep_alive<0, 5>());
}
