#include "minka/lowering/compiled_forms.h"

#include "minka/lowering/convolution_forms.h"
#include "minka/lowering/flatten_dims.h"

namespace minka {

Module CompiledForms(const Module& module, Departures departures) {
  if (!departures.contains(Departure::kConvolutionForms)) return FlattenDims(module, departures);
  return FlattenDims(ConvolutionForms(module), departures);
}

}  // namespace minka
