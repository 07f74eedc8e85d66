// A whole array in this process's memory, on its way to devices.
#pragma once

#include <utility>

#include "minka/ir/literal.h"
#include "minka/ir/shape.h"
#include "minka/runtime/pjrt/buffer.h"

namespace minka {

struct HostArray {
  // The literal's bytes, shared with it.
  HostArray(const Literal& literal)  // NOLINT(google-explicit-constructor)
      : shape(literal.shape), contents{*literal.bytes, literal.bytes} {}
  // Without an owner contents are read during the call that they are given to, no later.
  HostArray(Shape of, pjrt::LentContents lent) : shape(std::move(of)), contents(std::move(lent)) {}

  Shape shape;
  pjrt::LentContents contents;
};

}  // namespace minka
