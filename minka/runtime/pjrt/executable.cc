#include "minka/runtime/pjrt/executable.h"

#include <algorithm>
#include <utility>

#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/runtime/pjrt/client_state.h"
#include "minka/runtime/pjrt/compile_options.h"
#include "minka/runtime/pjrt/element_type.h"
#include "minka/runtime/pjrt/executable_facts.h"
#include "minka/runtime/pjrt/module_interface.h"

namespace minka::pjrt {

struct Executable::State {
  explicit State(std::shared_ptr<ClientState> client) : client(std::move(client)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  std::shared_ptr<ClientState> client;
  PJRT_LoadedExecutable* loaded = nullptr;
  PJRT_Executable* program = nullptr;
  proto::ModuleInterfaceProto interface_proto;
  ModuleInterface interface;
  std::vector<int> devices;
  std::vector<std::shared_ptr<const Shape>> outputs;
  MemoryStatistics memory;
};

Executable::State::~State() {
  auto free_program = Arguments<PJRT_Executable_Destroy_Args>();
  free_program.executable = program;
  CallIgnoringError(client->api, &PJRT_Api::PJRT_Executable_Destroy, free_program);
  auto unload = Arguments<PJRT_LoadedExecutable_Destroy_Args>();
  unload.executable = loaded;
  CallIgnoringError(client->api, &PJRT_Api::PJRT_LoadedExecutable_Destroy, unload);
}

Executable::Executable(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Executable::Executable(Executable&&) noexcept = default;
Executable& Executable::operator=(Executable&&) noexcept = default;
Executable::~Executable() = default;

namespace {

absl::StatusOr<PJRT_Executable*> ProgramOf(const PJRT_Api* api, PJRT_LoadedExecutable* loaded) {
  auto args = Arguments<PJRT_LoadedExecutable_GetExecutable_Args>();
  args.loaded_executable = loaded;
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_LoadedExecutable_GetExecutable, args));
  return args.executable;
}

absl::StatusOr<std::vector<int>> DevicePositions(const ClientState& client,
                                                 PJRT_LoadedExecutable* loaded) {
  auto args = Arguments<PJRT_LoadedExecutable_AddressableDevices_Args>();
  args.executable = loaded;
  RETURN_IF_ERROR(Call(client.api, &PJRT_Api::PJRT_LoadedExecutable_AddressableDevices, args));
  std::vector<int> positions;
  for (size_t i = 0; i < args.num_addressable_devices; ++i) {
    const auto found = std::ranges::find(client.handles, args.addressable_devices[i]);
    if (found == client.handles.end())
      return InternalError("the executable runs on a device that its client does not list");
    positions.push_back(static_cast<int>(found - client.handles.begin()));
  }
  return positions;
}

absl::StatusOr<std::vector<std::shared_ptr<const Shape>>> OutputShapes(const PJRT_Api* api,
                                                                       PJRT_Executable* program) {
  auto types = Arguments<PJRT_Executable_OutputElementTypes_Args>();
  types.executable = program;
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_Executable_OutputElementTypes, types));
  auto dims = Arguments<PJRT_Executable_OutputDimensions_Args>();
  dims.executable = program;
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_Executable_OutputDimensions, dims));
  std::vector<std::shared_ptr<const Shape>> shapes;
  const int64_t* next_dim = dims.dims;
  for (size_t i = 0; i < types.num_output_types; ++i) {
    ASSIGN_OR_RETURN(const ElementType type, FromPjrtType(types.output_types[i]));
    const int64_t* end = next_dim + dims.dim_sizes[i];
    shapes.push_back(std::make_shared<const Shape>(Shape{.type = type, .dims = {next_dim, end}}));
    next_dim = end;
  }
  return shapes;
}

// The fields of a state that come from the plugin; `loaded` is set.
template <typename State>
absl::Status ReadProgram(State& state) {
  const PJRT_Api* api = state.client->api;
  ASSIGN_OR_RETURN(state.program, ProgramOf(api, state.loaded));
  ASSIGN_OR_RETURN(state.devices, DevicePositions(*state.client, state.loaded));
  ASSIGN_OR_RETURN(state.outputs, OutputShapes(api, state.program));
  ASSIGN_OR_RETURN(state.memory, ReadMemoryStatistics(api, state.program));
  return absl::OkStatus();
}

absl::Status CheckArgument(const Buffer& argument, const Shape& wanted, int device,
                           const ClientState* client) {
  if (argument.state() == BufferState::kDeleted)
    return FailedPrecondition("the buffer was deleted");
  if (argument.state() == BufferState::kDonated)
    return FailedPrecondition("the buffer was donated to an earlier launch");
  if (argument.client() != client) return InvalidArgument("the buffer is of another client");
  if (argument.device() != device)
    return InvalidArgument("the buffer is on device {}, the replica runs on device {}",
                           argument.device(), device);
  if (!(argument.shape() == wanted))
    return InvalidArgument("the buffer is {}, the program wants {}", ToString(argument.shape()),
                           ToString(wanted));
  return absl::OkStatus();
}

// A donated buffer must not be used twice in one launch.
absl::Status CheckDonations(const std::vector<Buffer*>& arguments,
                            const std::vector<int>& donated) {
  if (donated.empty()) return absl::OkStatus();
  std::vector<const Buffer*> sorted(arguments.begin(), arguments.end());
  std::ranges::sort(sorted);
  for (const int parameter : donated) {
    const Buffer* buffer = arguments[parameter];
    if (std::ranges::equal_range(sorted, buffer).size() == 1) continue;
    size_t other = 0;
    while (arguments[other] != buffer || static_cast<int>(other) == parameter) ++other;
    return InvalidArgument("argument {} is donated and the same buffer is argument {} too",
                           parameter, other);
  }
  return absl::OkStatus();
}

absl::Status CheckReplica(const std::vector<Buffer*>& arguments, const ModuleInterface& interface,
                          int device, const ClientState* client) {
  if (arguments.size() != interface.parameters.size())
    return InvalidArgument("{} arguments for {} parameters", arguments.size(),
                           interface.parameters.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    MINKA_CHECK(arguments[i] != nullptr, "argument {}", i);
    RETURN_IF_ERROR(
        WithContext(CheckArgument(*arguments[i], *interface.parameters[i], device, client),
                    fmt::format("argument {}", i)));
  }
  return CheckDonations(arguments, interface.donated_parameters);
}

bool IsConsumed(const PJRT_Api* api, PJRT_Buffer* buffer) {
  auto args = Arguments<PJRT_Buffer_IsDeleted_Args>();
  args.buffer = buffer;
  return Call(api, &PJRT_Api::PJRT_Buffer_IsDeleted, args).ok() && args.is_deleted;
}

// Marks what the launch consumed; its bytes.
int64_t TakeDonations(const PJRT_Api* api, const std::vector<Buffer*>& arguments,
                      const std::vector<int>& donated) {
  int64_t bytes = 0;
  for (const int parameter : donated) {
    Buffer& buffer = *arguments[parameter];
    if (!IsConsumed(api, buffer.handle())) continue;
    bytes += buffer.size_bytes();
    buffer.MarkDonated();
  }
  return bytes;
}

// The nested arrays of an Execute call.
struct LaunchArrays {
  LaunchArrays(std::span<const std::vector<Buffer*>> launch_arguments, size_t num_outputs)
      : arguments(launch_arguments.size()),
        outputs(launch_arguments.size(), std::vector<PJRT_Buffer*>(num_outputs, nullptr)),
        events(launch_arguments.size(), nullptr) {
    for (size_t replica = 0; replica < arguments.size(); ++replica) {
      arguments[replica].reserve(launch_arguments[replica].size());
      for (const Buffer* buffer : launch_arguments[replica])
        arguments[replica].push_back(buffer->handle());
      argument_lists.push_back(arguments[replica].data());
      output_lists.push_back(outputs[replica].data());
    }
  }

  std::vector<std::vector<PJRT_Buffer*>> arguments;
  std::vector<std::vector<PJRT_Buffer*>> outputs;
  std::vector<PJRT_Event*> events;
  std::vector<PJRT_Buffer* const*> argument_lists;
  std::vector<PJRT_Buffer**> output_lists;
};

absl::Status LaunchAll(const PJRT_Api* api, PJRT_LoadedExecutable* loaded, size_t num_parameters,
                       LaunchArrays& arrays) {
  auto options = Arguments<PJRT_ExecuteOptions>();
  auto args = Arguments<PJRT_LoadedExecutable_Execute_Args>();
  args.executable = loaded;
  args.options = &options;
  args.argument_lists = arrays.argument_lists.data();
  args.num_devices = arrays.argument_lists.size();
  args.num_args = num_parameters;
  args.output_lists = arrays.output_lists.data();
  args.device_complete_events = arrays.events.data();
  return Call(api, &PJRT_Api::PJRT_LoadedExecutable_Execute, args);
}

}  // namespace

absl::StatusOr<Executable> Executable::Compile(const Client& client, std::string_view module_bytes,
                                               const CompileOptions& options) {
  auto state = std::make_unique<State>(client.state());
  ASSIGN_OR_RETURN(state->interface_proto, ParseModuleInterface(module_bytes));
  ASSIGN_OR_RETURN(state->interface, InterfaceOf(state->interface_proto));
  ASSIGN_OR_RETURN(const std::string option_bytes, CompileOptionsBytes(client, options));
  PJRT_Program program = HloProgram(module_bytes);
  auto args = Arguments<PJRT_Client_Compile_Args>();
  args.client = client.state()->client;
  args.program = &program;
  args.compile_options = option_bytes.data();
  args.compile_options_size = option_bytes.size();
  RETURN_IF_ERROR(WithContext(Call(client.state()->api, &PJRT_Api::PJRT_Client_Compile, args),
                              fmt::format("XLA does not compile '{}'", state->interface.name)));
  state->loaded = args.executable;
  RETURN_IF_ERROR(ReadProgram(*state));
  return Executable(std::move(state));
}

absl::StatusOr<Executable> Executable::Deserialize(const Client& client, std::string_view bytes) {
  proto::SerializedExecutableProto message;
  if (bytes.size() > INT32_MAX ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return InvalidArgument("{} bytes that are no executable of minka", bytes.size());
  auto state = std::make_unique<State>(client.state());
  state->interface_proto = message.interface();
  ASSIGN_OR_RETURN(state->interface, InterfaceOf(state->interface_proto));
  auto args = Arguments<PJRT_Executable_DeserializeAndLoad_Args>();
  args.client = client.state()->client;
  args.serialized_executable = message.executable().data();
  args.serialized_executable_size = message.executable().size();
  RETURN_IF_ERROR(
      WithContext(Call(client.state()->api, &PJRT_Api::PJRT_Executable_DeserializeAndLoad, args),
                  fmt::format("the plugin does not load '{}'", state->interface.name)));
  state->loaded = args.loaded_executable;
  RETURN_IF_ERROR(ReadProgram(*state));
  return Executable(std::move(state));
}

absl::StatusOr<std::string> Executable::Serialize() const {
  auto args = Arguments<PJRT_Executable_Serialize_Args>();
  args.executable = state_->program;
  RETURN_IF_ERROR(Call(state_->client->api, &PJRT_Api::PJRT_Executable_Serialize, args));
  proto::SerializedExecutableProto message;
  *message.mutable_interface() = state_->interface_proto;
  message.set_executable(args.serialized_bytes, args.serialized_bytes_size);
  args.serialized_executable_deleter(args.serialized_executable);
  return message.SerializeAsString();
}

const std::string& Executable::name() const { return state_->interface.name; }
const std::vector<int>& Executable::devices() const { return state_->devices; }
int Executable::num_parameters() const {
  return static_cast<int>(state_->interface.parameters.size());
}
const Shape& Executable::parameter_shape(int parameter) const {
  return *state_->interface.parameters[parameter];
}
const std::vector<int>& Executable::donated_parameters() const {
  return state_->interface.donated_parameters;
}
int Executable::num_outputs() const { return static_cast<int>(state_->outputs.size()); }
const MemoryStatistics& Executable::memory() const { return state_->memory; }

absl::StatusOr<std::map<std::string, double>> Executable::CostAnalysis() const {
  auto args = Arguments<PJRT_Executable_GetCostAnalysis_Args>();
  args.executable = state_->program;
  RETURN_IF_ERROR(Call(state_->client->api, &PJRT_Api::PJRT_Executable_GetCostAnalysis, args));
  std::map<std::string, double> properties;
  for (size_t i = 0; i < args.num_properties; ++i) {
    const PJRT_NamedValue& value = args.properties[i];
    const std::string name(value.name, value.name_size);
    if (value.type == PJRT_NamedValue_kFloat) properties[name] = value.float_value;
    if (value.type == PJRT_NamedValue_kInt64)
      properties[name] = static_cast<double>(value.int64_value);
  }
  return properties;
}

absl::StatusOr<std::string> Executable::OptimizedModule() const {
  return ReadOptimizedModule(state_->client->api, state_->program);
}

absl::StatusOr<std::string> Executable::Fingerprint() const {
  auto args = Arguments<PJRT_Executable_Fingerprint_Args>();
  args.executable = state_->program;
  RETURN_IF_ERROR(Call(state_->client->api, &PJRT_Api::PJRT_Executable_Fingerprint, args));
  return std::string(args.executable_fingerprint, args.executable_fingerprint_size);
}

absl::StatusOr<Launch> Executable::Execute(std::span<const std::vector<Buffer*>> arguments) const {
  const ModuleInterface& interface = state_->interface;
  if (arguments.size() != state_->devices.size())
    return InvalidArgument("'{}' runs on {} devices, arguments are given for {}", name(),
                           state_->devices.size(), arguments.size());
  for (size_t replica = 0; replica < arguments.size(); ++replica)
    RETURN_IF_ERROR(WithContext(
        CheckReplica(arguments[replica], interface, state_->devices[replica], state_->client.get()),
        fmt::format("'{}', replica {}", name(), replica)));
  const PJRT_Api* api = state_->client->api;
  LaunchArrays arrays(arguments, state_->outputs.size());
  RETURN_IF_ERROR(WithContext(LaunchAll(api, state_->loaded, interface.parameters.size(), arrays),
                              fmt::format("launch of '{}'", name())));
  Launch launch;
  launch.results.resize(arguments.size());
  for (size_t replica = 0; replica < arguments.size(); ++replica) {
    const int device = state_->devices[replica];
    launch.completions.emplace_back(api, arrays.events[replica]);
    LaunchBytes bytes{.temp_bytes = state_->memory.temp_bytes};
    for (size_t output = 0; output < state_->outputs.size(); ++output) {
      const Buffer& result = launch.results[replica].emplace_back(
          state_->client, arrays.outputs[replica][output], device, state_->outputs[output],
          Metering::kByLaunch);
      bytes.output_bytes += result.size_bytes();
    }
    bytes.donated_bytes = TakeDonations(api, arguments[replica], interface.donated_parameters);
    bytes.alias_bytes = std::min(state_->memory.alias_bytes, bytes.donated_bytes);
    state_->client->meter->AddLaunch(device, bytes);
  }
  return launch;
}

absl::Status Launch::Await() const {
  absl::Status first;
  // Every replica, even after an error: nothing of the launch runs any more when this returns.
  for (size_t replica = 0; replica < completions.size(); ++replica)
    if (absl::Status status = completions[replica].Await(); first.ok())
      first = WithContext(status, fmt::format("replica {}", replica));
  return first;
}

}  // namespace minka::pjrt
