#include "minka/driver/checkpoint.h"

#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "minka/base/status.h"

namespace minka {
namespace {

std::map<std::string, const CheckpointTensor*> TensorsByName(const CheckpointManifest& manifest) {
  std::map<std::string, const CheckpointTensor*> tensors;
  for (const CheckpointTensor& tensor : manifest.tensors) tensors[tensor.name] = &tensor;
  return tensors;
}

// How the checkpoint was made, to say in errors.
std::string Origin(const CheckpointReader& checkpoint) {
  std::string text =
      fmt::format("{} is a checkpoint of {}", checkpoint.path(), checkpoint.manifest().model);
  for (const auto& [flag, value] : checkpoint.manifest().options) {
    if (flag != "model") text += fmt::format(" --{} {}", flag, value);
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> SaveCheckpoint(const std::string& folder, int keep,
                                           CheckpointManifest about, const StepRunner& runner,
                                           const State& state) {
  about.step = state.num_steps;
  about.seed = state.seed;
  ASSIGN_OR_RETURN(CheckpointWriter writer, CheckpointWriter::Create(folder, std::move(about)));
  for (int i = 0; i < static_cast<int>(runner.parameters().size()); ++i) {
    const ParameterInfo& parameter = runner.parameters()[i];
    if (!IsResident(parameter)) continue;
    ASSIGN_OR_RETURN(const Literal value, state.arrays[i].ToHost());
    RETURN_IF_ERROR(writer.Add(parameter.name, {.shape = value.shape, .bytes = *value.bytes}));
  }
  return writer.Commit(keep);
}

absl::Status CheckFits(const CheckpointReader& checkpoint, const Step& step) {
  auto tensors = TensorsByName(checkpoint.manifest());
  const Computation& entry = step.module.entry_computation();
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    if (!IsResident(step.parameters[i])) continue;
    const std::string& name = step.parameters[i].name;
    const Shape& shape = entry.instructions[entry.parameters[i]].shape();
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      return InvalidArgument("{}, which has no {}", Origin(checkpoint), name);
    }
    if (found->second->shape != shape) {
      return InvalidArgument("{}, whose {} is {}, not {}", Origin(checkpoint), name,
                             ToString(found->second->shape), ToString(shape));
    }
    tensors.erase(found);
  }
  if (tensors.empty()) return absl::OkStatus();
  return InvalidArgument("{}, which has {}; the step to resume has not", Origin(checkpoint),
                         tensors.begin()->first);
}

absl::StatusOr<State> RestoreCheckpoint(const CheckpointReader& checkpoint, StepRunner& runner) {
  const auto tensors = TensorsByName(checkpoint.manifest());
  TensorFile open;
  std::optional<int> open_number;
  const auto value = [&](int parameter) -> absl::StatusOr<Literal> {
    const std::string& name = runner.parameters()[parameter].name;
    const CheckpointTensor& tensor = *tensors.at(name);
    if (open_number != tensor.file) {
      ASSIGN_OR_RETURN(open, checkpoint.ReadTensorFile(tensor.file));
      open_number = tensor.file;
    }
    HostTensor& stored = open.tensors.at(name);
    return Literal{tensor.shape, std::make_shared<const std::string>(std::move(stored.bytes))};
  };
  ASSIGN_OR_RETURN(State state, runner.CreateState(value));
  state.seed = checkpoint.manifest().seed;
  state.num_steps = checkpoint.manifest().step;
  return state;
}

}  // namespace minka
