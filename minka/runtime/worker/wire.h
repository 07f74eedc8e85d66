// What both ends of worker.proto agree on beside its messages.
#pragma once

#include <cstddef>

namespace minka {

// Metadata of a session.
inline constexpr char kTokenKey[] = "minka-token";
inline constexpr char kVersionKey[] = "minka-version";

// Larger arrays come in pieces of so many bytes.
inline constexpr size_t kPieceBytes = size_t{4} << 20;

// Channels of a program are numbered below 2 to the power of this.
inline constexpr int kChannelBits = 24;

}  // namespace minka
