#include "minka/runtime/pjrt/compile_options.h"

#include <numeric>

#include "minka/base/status.h"
#include "minka/runtime/pjrt/pjrt.pb.h"

namespace minka::pjrt {
namespace {

absl::StatusOr<std::vector<int>> DevicesOf(const Client& client, const CompileOptions& options) {
  if (options.num_replicas < 1 || options.num_replicas > client.num_devices())
    return InvalidArgument("{} replicas on a client with {} devices", options.num_replicas,
                           client.num_devices());
  if (options.devices.empty()) {
    std::vector<int> first(options.num_replicas);
    std::iota(first.begin(), first.end(), 0);
    return first;
  }
  if (static_cast<int>(options.devices.size()) != options.num_replicas)
    return InvalidArgument("{} devices named for {} replicas", options.devices.size(),
                           options.num_replicas);
  for (const int device : options.devices)
    if (device < 0 || device >= client.num_devices())
      return InvalidArgument("device {} of a client with {} devices", device, client.num_devices());
  return options.devices;
}

proto::OptionOverrideProto OverrideProto(const OverrideValue& value) {
  proto::OptionOverrideProto result;
  if (const auto* text = std::get_if<std::string>(&value)) result.set_string_field(*text);
  if (const auto* flag = std::get_if<bool>(&value)) result.set_bool_field(*flag);
  if (const auto* number = std::get_if<int64_t>(&value)) result.set_int_field(*number);
  if (const auto* real = std::get_if<double>(&value)) result.set_double_field(*real);
  return result;
}

}  // namespace

absl::StatusOr<std::string> CompileOptionsBytes(const Client& client,
                                                const CompileOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<int> devices, DevicesOf(client, options));
  std::vector<int> ids;
  for (const int device : devices) ids.push_back(client.devices()[device].id);
  Overrides overrides = MergeOverrides(RequiredOverrides(client.kind()),
                                       ClientOverrides(client.kind(), client.num_devices()));
  return CompileOptionsBytes(ids, MergeOverrides(std::move(overrides), options.overrides));
}

std::string CompileOptionsBytes(const std::vector<int>& device_ids, const Overrides& overrides) {
  const auto num_replicas = static_cast<int>(device_ids.size());
  proto::CompileOptionsProto message;
  proto::ExecutableBuildOptionsProto& build = *message.mutable_executable_build_options();
  build.set_device_ordinal(-1);
  build.set_num_replicas(num_replicas);
  build.set_num_partitions(1);
  proto::DeviceAssignmentProto& assignment = *build.mutable_device_assignment();
  assignment.set_replica_count(num_replicas);
  assignment.set_computation_count(1);
  auto& computation = *assignment.add_computation_devices();
  for (const int id : device_ids) computation.add_replica_device_ids(id);
  for (const auto& [name, value] : overrides)
    (*message.mutable_env_option_overrides())[name] = OverrideProto(value);
  return message.SerializeAsString();
}

}  // namespace minka::pjrt
