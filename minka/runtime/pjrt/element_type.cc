#include "minka/runtime/pjrt/element_type.h"

#include <algorithm>
#include <iterator>

#include "minka/base/status.h"

namespace minka::pjrt {
namespace {

struct TypePair {
  ElementType ours;
  PJRT_Buffer_Type theirs;
};

constexpr TypePair kTypes[] = {
    {ElementType::kPred, PJRT_Buffer_Type_PRED},
    {ElementType::kS8, PJRT_Buffer_Type_S8},
    {ElementType::kS16, PJRT_Buffer_Type_S16},
    {ElementType::kS32, PJRT_Buffer_Type_S32},
    {ElementType::kS64, PJRT_Buffer_Type_S64},
    {ElementType::kU8, PJRT_Buffer_Type_U8},
    {ElementType::kU16, PJRT_Buffer_Type_U16},
    {ElementType::kU32, PJRT_Buffer_Type_U32},
    {ElementType::kU64, PJRT_Buffer_Type_U64},
    {ElementType::kF16, PJRT_Buffer_Type_F16},
    {ElementType::kF32, PJRT_Buffer_Type_F32},
    {ElementType::kF64, PJRT_Buffer_Type_F64},
    {ElementType::kBF16, PJRT_Buffer_Type_BF16},
    {ElementType::kC64, PJRT_Buffer_Type_C64},
    {ElementType::kC128, PJRT_Buffer_Type_C128},
    {ElementType::kF8E5M2, PJRT_Buffer_Type_F8E5M2},
    {ElementType::kF8E4M3FN, PJRT_Buffer_Type_F8E4M3FN},
    {ElementType::kF8E4M3B11FNUZ, PJRT_Buffer_Type_F8E4M3B11FNUZ},
    {ElementType::kF8E5M2FNUZ, PJRT_Buffer_Type_F8E5M2FNUZ},
    {ElementType::kF8E4M3FNUZ, PJRT_Buffer_Type_F8E4M3FNUZ},
    {ElementType::kS4, PJRT_Buffer_Type_S4},
    {ElementType::kU4, PJRT_Buffer_Type_U4},
    {ElementType::kS2, PJRT_Buffer_Type_S2},
    {ElementType::kU2, PJRT_Buffer_Type_U2},
    {ElementType::kF8E4M3, PJRT_Buffer_Type_F8E4M3},
    {ElementType::kF8E3M4, PJRT_Buffer_Type_F8E3M4},
    {ElementType::kF8E8M0FNU, PJRT_Buffer_Type_F8E8M0FNU},
    {ElementType::kF4E2M1FN, PJRT_Buffer_Type_F4E2M1FN},
};

}  // namespace

absl::StatusOr<PJRT_Buffer_Type> ToPjrtType(ElementType type) {
  const auto* found = std::ranges::find(kTypes, type, &TypePair::ours);
  if (found != std::end(kTypes)) return found->theirs;
  return Unimplemented("a device cannot keep an array of {}", TypeName(type));
}

absl::StatusOr<ElementType> FromPjrtType(PJRT_Buffer_Type type) {
  const auto* found = std::ranges::find(kTypes, type, &TypePair::theirs);
  if (found != std::end(kTypes)) return found->ours;
  return Unimplemented(
      "the plugin gives an array of PJRT type number {}, which minka does not know",
      static_cast<int>(type));
}

}  // namespace minka::pjrt
