#include "step_inputs.h"

#include <memory>
#include <string>
#include <utility>

#include "minka/base/status.h"
#include "minka/driver/inputs.h"

namespace minka {
namespace {

// The first of `num_slices` slices of a batch, over and over.
void RepeatFirstSlice(Literal& batch, int num_slices) {
  const std::string slice = batch.bytes->substr(0, batch.bytes->size() / num_slices);
  std::string repeated;
  for (int i = 0; i < num_slices; ++i) repeated += slice;
  batch.bytes = std::make_shared<const std::string>(std::move(repeated));
}

}  // namespace

StepInputs InputsOf(const TracedStep& traced, uint64_t seed, int num_equal_slices) {
  return [&traced, seed, num_equal_slices](int step) -> absl::StatusOr<ParameterValues> {
    ParameterValues values = InitialValues(traced.step, traced.initializers, seed);
    for (int i = 0; i < static_cast<int>(values.size()); ++i) {
      if (values[i].bytes) continue;
      ASSIGN_OR_RETURN(values[i], RandomInput(traced.step, i, seed + step));
      if (traced.step.parameters[i].batch_dim == 0) RepeatFirstSlice(values[i], num_equal_slices);
    }
    return values;
  };
}

}  // namespace minka
