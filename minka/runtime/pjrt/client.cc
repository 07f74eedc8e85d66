#include "minka/runtime/pjrt/client.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "minka/base/status.h"
#include "minka/runtime/pjrt/client_state.h"
#include "minka/runtime/pjrt/element_type.h"
#include "minka/runtime/pjrt/platform.h"
#include "minka/runtime/pjrt/row_major_layout.h"

namespace minka::pjrt {
namespace {

PJRT_NamedValue NamedValue(const std::string& name, const ClientOption& option) {
  PJRT_NamedValue value = {};
  value.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  value.name = name.data();
  value.name_size = name.size();
  if (const auto* number = std::get_if<int64_t>(&option)) {
    value.type = PJRT_NamedValue_kInt64;
    value.int64_value = *number;
    value.value_size = 1;
  } else if (const auto* flag = std::get_if<bool>(&option)) {
    value.type = PJRT_NamedValue_kBool;
    value.bool_value = *flag;
    value.value_size = 1;
  } else if (const auto* share = std::get_if<float>(&option)) {
    value.type = PJRT_NamedValue_kFloat;
    value.float_value = *share;
    value.value_size = 1;
  } else {
    const auto& list = std::get<std::vector<int64_t>>(option);
    value.type = PJRT_NamedValue_kInt64List;
    value.int64_array_value = list.data();
    value.value_size = list.size();
  }
  return value;
}

absl::StatusOr<PJRT_Client*> CreateClient(const PJRT_Api* api,
                                          const std::map<std::string, ClientOption>& options) {
  std::vector<PJRT_NamedValue> values;
  values.reserve(options.size());
  for (const auto& [name, option] : options) values.push_back(NamedValue(name, option));
  auto args = Arguments<PJRT_Client_Create_Args>();
  args.create_options = values.data();
  args.num_options = values.size();
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_Client_Create, args));
  return args.client;
}

absl::StatusOr<Device> Describe(const PJRT_Api* api, PJRT_Device* handle) {
  auto get = Arguments<PJRT_Device_GetDescription_Args>();
  get.device = handle;
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_Device_GetDescription, get));
  auto id = Arguments<PJRT_DeviceDescription_Id_Args>();
  id.device_description = get.device_description;
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_DeviceDescription_Id, id));
  auto kind = Arguments<PJRT_DeviceDescription_Kind_Args>();
  kind.device_description = get.device_description;
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_DeviceDescription_Kind, kind));
  auto text = Arguments<PJRT_DeviceDescription_ToString_Args>();
  text.device_description = get.device_description;
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_DeviceDescription_ToString, text));
  return Device{.id = id.id,
                .kind = std::string(kind.device_kind, kind.device_kind_size),
                .description = std::string(text.to_string, text.to_string_size)};
}

absl::StatusOr<std::vector<PJRT_Device*>> AddressableDevices(const PJRT_Api* api,
                                                             PJRT_Client* client) {
  auto args = Arguments<PJRT_Client_AddressableDevices_Args>();
  args.client = client;
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_Client_AddressableDevices, args));
  return std::vector<PJRT_Device*>(args.addressable_devices,
                                   args.addressable_devices + args.num_addressable_devices);
}

absl::StatusOr<std::string> PlatformName(const PJRT_Api* api, PJRT_Client* client) {
  auto args = Arguments<PJRT_Client_PlatformName_Args>();
  args.client = client;
  RETURN_IF_ERROR(Call(api, &PJRT_Api::PJRT_Client_PlatformName, args));
  return std::string(args.platform_name, args.platform_name_size);
}

}  // namespace

ClientState::~ClientState() {
  auto args = Arguments<PJRT_Client_Destroy_Args>();
  args.client = client;
  CallIgnoringError(api, &PJRT_Api::PJRT_Client_Destroy, args);
}

absl::StatusOr<Client> Client::Create(const Plugin& plugin, const ClientOptions& options) {
  if (options.num_devices < 0) return InvalidArgument("{} devices asked for", options.num_devices);
  const PJRT_Api* api = plugin.api();
  auto created = CreateClient(
      api, PlatformClientOptions(plugin.kind(), options.first_device, options.num_devices));
  if (!created.ok())
    return WithContext(created.status(), fmt::format("no {} devices", PlatformName(plugin.kind())));
  auto state = std::make_shared<ClientState>(api, *created);
  state->kind = plugin.kind();
  ASSIGN_OR_RETURN(state->platform, PlatformName(api, state->client));
  ASSIGN_OR_RETURN(state->handles, AddressableDevices(api, state->client));
  for (PJRT_Device* handle : state->handles) {
    ASSIGN_OR_RETURN(Device device, Describe(api, handle));
    state->devices.push_back(std::move(device));
  }
  const int found = static_cast<int>(state->devices.size());
  if (options.num_devices != 0 && found != options.num_devices)
    return FailedPrecondition("{} {} devices asked for, the plugin gives {}", options.num_devices,
                              state->platform, found);
  state->meter = std::make_unique<MemoryMeter>(found);
  state->allocator_peaks_at_reset = std::vector<std::atomic<int64_t>>(found);
  return Client(std::move(state));
}

const std::string& Client::platform() const { return state_->platform; }
Platform Client::kind() const { return state_->kind; }
const std::vector<Device>& Client::devices() const { return state_->devices; }
MemoryMeter& Client::meter() const { return *state_->meter; }

absl::StatusOr<Buffer> Client::CopyFromHost(int device, const Shape& shape,
                                            std::string_view bytes) const {
  return CopyFromHost(device, shape, LentContents{.bytes = bytes});
}

absl::StatusOr<Buffer> Client::CopyFromHost(int device, const Shape& shape,
                                            LentContents contents) const {
  if (device < 0 || device >= num_devices())
    return InvalidArgument("device {} of a client with {} devices", device, num_devices());
  ASSIGN_OR_RETURN(const PJRT_Buffer_Type type, ToPjrtType(shape.type));
  if (static_cast<int64_t>(contents.bytes.size()) != shape.num_bytes())
    return InvalidArgument("{} takes {} bytes, not {}", ToString(shape), shape.num_bytes(),
                           contents.bytes.size());
  // A copy within this process's memory is done in this thread: no other one need be free for it.
  const bool may_be_read_later = contents.owner != nullptr && state_->kind != Platform::kCpu;
  auto args = Arguments<PJRT_Client_BufferFromHostBuffer_Args>();
  args.client = state_->client;
  args.data = contents.bytes.data();
  args.type = type;
  args.dims = shape.dims.data();
  args.num_dims = shape.dims.size();
  args.host_buffer_semantics = may_be_read_later
                                   ? PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes
                                   : PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = state_->handles[device];
  RETURN_IF_ERROR(Call(state_->api, &PJRT_Api::PJRT_Client_BufferFromHostBuffer, args));
  const Event done_with_host_buffer(state_->api, args.done_with_host_buffer);
  Buffer buffer(state_, args.buffer, device, std::make_shared<const Shape>(shape),
                Metering::kByBuffer);
  if (may_be_read_later) {
    // Whether it went well is said where the buffer is used.
    RETURN_IF_ERROR(done_with_host_buffer.OnReady(
        [owner = std::move(contents.owner)](const absl::Status&) mutable { owner.reset(); }));
  }
  return buffer;
}

absl::StatusOr<Buffer> Client::Adopt(int device, const Shape& shape,
                                     std::shared_ptr<char> memory) const {
  // Of types narrower than a byte the plugin packs several into one.
  const bool is_packed = ElementBits(shape.type) < 8 * ElementBytes(shape.type);
  if (state_->kind != Platform::kCpu || is_packed) {
    const std::string_view bytes(memory.get(), static_cast<size_t>(shape.num_bytes()));
    return CopyFromHost(device, shape, bytes);
  }
  if (device < 0 || device >= num_devices())
    return InvalidArgument("device {} of a client with {} devices", device, num_devices());
  RowMajorLayout layout(shape.rank());
  auto args = Arguments<PJRT_Client_CreateViewOfDeviceBuffer_Args>();
  args.client = state_->client;
  args.device_buffer_ptr = memory.get();
  args.dims = shape.dims.data();
  args.num_dims = shape.dims.size();
  ASSIGN_OR_RETURN(args.element_type, ToPjrtType(shape.type));
  args.layout = layout.get();
  args.device = state_->handles[device];
  auto held = std::make_unique<std::shared_ptr<char>>(std::move(memory));
  args.on_delete_callback = [](void* /*memory*/, void* held) {
    delete static_cast<std::shared_ptr<char>*>(held);
  };
  args.on_delete_callback_arg = held.get();
  RETURN_IF_ERROR(Call(state_->api, &PJRT_Api::PJRT_Client_CreateViewOfDeviceBuffer, args));
  [[maybe_unused]] const auto* const of_callback = held.release();
  return Buffer(state_, args.buffer, device, std::make_shared<const Shape>(shape),
                Metering::kByBuffer);
}

absl::Status Client::RegisterHostMemory(std::span<char> memory) const {
  if (state_->kind == Platform::kCpu) return absl::OkStatus();
  auto args = Arguments<PJRT_Client_DmaMap_Args>();
  args.client = state_->client;
  args.data = memory.data();
  args.size = memory.size();
  return Call(state_->api, &PJRT_Api::PJRT_Client_DmaMap, args);
}

std::optional<AllocatorBytes> Client::allocator_bytes(int device) const {
  auto args = Arguments<PJRT_Device_MemoryStats_Args>();
  args.device = state_->handles[device];
  if (!Call(state_->api, &PJRT_Api::PJRT_Device_MemoryStats, args).ok()) return std::nullopt;
  return AllocatorBytes{.in_use_bytes = args.bytes_in_use,
                        .peak_bytes = args.peak_bytes_in_use_is_set ? args.peak_bytes_in_use : 0,
                        .limit_bytes = args.bytes_limit_is_set ? args.bytes_limit : 0};
}

int64_t Client::peak_bytes(int device) const {
  const std::optional<AllocatorBytes> allocator = allocator_bytes(device);
  const bool has_risen =
      allocator && allocator->peak_bytes > state_->allocator_peaks_at_reset[device];
  return has_risen ? allocator->peak_bytes : meter().peak_bytes(device);
}

void Client::ResetPeak() {
  meter().ResetPeak();
  for (int device = 0; device < num_devices(); ++device) {
    const std::optional<AllocatorBytes> allocator = allocator_bytes(device);
    if (allocator) state_->allocator_peaks_at_reset[device] = allocator->peak_bytes;
  }
}

int64_t Client::LargestPeakBytes(int num_devices) const {
  int64_t largest = 0;
  for (int device = 0; device < num_devices; ++device) {
    largest = std::max(largest, peak_bytes(device));
  }
  return largest;
}

}  // namespace minka::pjrt
