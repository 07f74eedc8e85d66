#include "minka/runtime/pjrt/module_interface.h"

#include <set>

#include "minka/base/status.h"

namespace minka::pjrt {
namespace {

absl::StatusOr<Shape> ArrayShape(const proto::ShapeProto& shape, int parameter) {
  const auto type = static_cast<ElementType>(shape.element_type());
  if (shape.tuple_shapes_size() > 0 || shape.element_type() > UINT8_MAX || ElementBytes(type) == 0)
    return InvalidArgument(
        "parameter {} of the module is not an array; tuples must be passed as flat parameters",
        parameter);
  return Shape{.type = type, .dims = {shape.dimensions().begin(), shape.dimensions().end()}};
}

}  // namespace

absl::StatusOr<proto::ModuleInterfaceProto> ParseModuleInterface(std::string_view module_bytes) {
  proto::ModuleInterfaceProto module;
  if (module_bytes.size() > INT32_MAX ||
      !module.ParseFromArray(module_bytes.data(), static_cast<int>(module_bytes.size())))
    return InvalidArgument("{} bytes that are no HloModuleProto", module_bytes.size());
  if (!module.has_host_program_shape())
    return InvalidArgument("module '{}' has no host_program_shape (field 4)", module.name());
  // A fresh message: the instructions sit in the parsed one's unknown fields.
  proto::ModuleInterfaceProto interface;
  interface.set_name(module.name());
  interface.mutable_host_program_shape()->Swap(module.mutable_host_program_shape());
  interface.mutable_input_output_alias()->Swap(module.mutable_input_output_alias());
  interface.mutable_buffer_donor()->Swap(module.mutable_buffer_donor());
  return interface;
}

absl::StatusOr<ModuleInterface> InterfaceOf(const proto::ModuleInterfaceProto& module) {
  ModuleInterface interface{.name = module.name()};
  for (const proto::ShapeProto& parameter : module.host_program_shape().parameters()) {
    ASSIGN_OR_RETURN(Shape shape,
                     ArrayShape(parameter, static_cast<int>(interface.parameters.size())));
    interface.parameters.push_back(std::make_shared<const Shape>(std::move(shape)));
  }
  std::set<int64_t> donated;
  for (const auto& entry : module.input_output_alias().entries())
    donated.insert(entry.parameter_number());
  for (const auto& entry : module.buffer_donor().entries())
    donated.insert(entry.parameter_number());
  for (const int64_t parameter : donated) {
    if (parameter < 0 || parameter >= static_cast<int64_t>(interface.parameters.size()))
      return InvalidArgument("module '{}' donates parameter {} of {}", module.name(), parameter,
                             interface.parameters.size());
    interface.donated_parameters.push_back(static_cast<int>(parameter));
  }
  return interface;
}

}  // namespace minka::pjrt
