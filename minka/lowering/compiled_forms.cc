#include "minka/lowering/compiled_forms.h"

#include <utility>

#include "minka/lowering/compared_maxima.h"
#include "minka/lowering/convolution_forms.h"
#include "minka/lowering/dots_as_convolutions.h"
#include "minka/lowering/flatten_dims.h"

namespace minka {

Module CompiledForms(Module module, Departures departures) {
  if (departures.contains(Departure::kConvolutionForms)) module = ConvolutionForms(module);
  if (departures.contains(Departure::kImageConvolutions)) module = DotsAsConvolutions(module);
  if (departures.contains(Departure::kComparedMaxima)) module = ComparedMaxima(std::move(module));
  return FlattenDims(std::move(module), departures);
}

}  // namespace minka
