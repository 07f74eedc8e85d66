#include "minka/lowering/compiled_forms.h"

#include "minka/lowering/convolution_forms.h"
#include "minka/lowering/flatten_dims.h"

namespace minka {

Module CompiledForms(const Module& module) { return FlattenDims(ConvolutionForms(module)); }

}  // namespace minka
