#include "minka/runtime/pjrt/target.h"

#include <numeric>
#include <utility>
#include <vector>

#include "minka/base/status.h"
#include "minka/runtime/pjrt/compile_options.h"
#include "minka/runtime/pjrt/executable_facts.h"
#include "minka/runtime/pjrt/module_interface.h"

namespace minka::pjrt {
namespace {

PJRT_NamedValue NamedText(std::string_view name, const std::string& value) {
  PJRT_NamedValue named = {};
  named.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  named.name = name.data();
  named.name_size = name.size();
  named.type = PJRT_NamedValue_kString;
  named.string_value = value.data();
  named.value_size = value.size();
  return named;
}

}  // namespace

struct Target::State {
  State(const PJRT_Api* api, PJRT_TopologyDescription* topology, int num_devices)
      : api(api), topology(topology), num_devices(num_devices) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    auto args = Arguments<PJRT_TopologyDescription_Destroy_Args>();
    args.topology = topology;
    CallIgnoringError(api, &PJRT_Api::PJRT_TopologyDescription_Destroy, args);
  }

  const PJRT_Api* const api;
  PJRT_TopologyDescription* const topology;
  const int num_devices;
};

absl::StatusOr<Target> Target::Create(const Plugin& plugin, const std::string& description,
                                      int num_devices) {
  if (plugin.kind() != Platform::kCuda) {
    return InvalidArgument("{} compiles for no devices that are not here", plugin.path());
  }
  // Slices of hosts of devices.
  const std::string sizes = fmt::format("1x1x{}", num_devices);
  const PJRT_NamedValue options[] = {NamedText("target_config", description),
                                     NamedText("topology", sizes)};
  static constexpr std::string_view kName = "target";
  auto args = Arguments<PJRT_TopologyDescription_Create_Args>();
  args.topology_name = kName.data();
  args.topology_name_size = kName.size();
  args.create_options = options;
  args.num_options = std::size(options);
  RETURN_IF_ERROR(WithContext(Call(plugin.api(), &PJRT_Api::PJRT_TopologyDescription_Create, args),
                              "the plugin does not know the devices"));
  return Target(std::make_shared<const State>(plugin.api(), args.topology, num_devices));
}

absl::StatusOr<TargetProgram> Target::Compile(std::string_view module_bytes) const {
  ASSIGN_OR_RETURN(const proto::ModuleInterfaceProto interface, ParseModuleInterface(module_bytes));
  std::vector<int> ids(state_->num_devices);
  std::iota(ids.begin(), ids.end(), 0);
  const std::string option_bytes = CompileOptionsBytes(
      ids,
      MergeOverrides(RequiredOverrides(Platform::kCuda), {{"xla_gpu_autotune_level", int64_t{0}}}));
  PJRT_Program program = HloProgram(module_bytes);
  auto args = Arguments<PJRT_Compile_Args>();
  args.topology = state_->topology;
  args.program = &program;
  args.compile_options = option_bytes.data();
  args.compile_options_size = option_bytes.size();
  RETURN_IF_ERROR(WithContext(Call(state_->api, &PJRT_Api::PJRT_Compile, args),
                              fmt::format("XLA does not compile '{}'", interface.name())));
  TargetProgram out;
  const auto read = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(out.memory, ReadMemoryStatistics(state_->api, args.executable));
    ASSIGN_OR_RETURN(out.optimized_module, ReadOptimizedModule(state_->api, args.executable));
    return absl::OkStatus();
  };
  const absl::Status status = read();
  auto destroy = Arguments<PJRT_Executable_Destroy_Args>();
  destroy.executable = args.executable;
  CallIgnoringError(state_->api, &PJRT_Api::PJRT_Executable_Destroy, destroy);
  RETURN_IF_ERROR(status);
  return out;
}

}  // namespace minka::pjrt
