// Random bits as a function of (key, element index), so that every device draws the bits of its own
// elements without communication, and a rematerialised mask is the same mask.
//
// The generator is Squares (B. Widynski, "Squares: A Fast Counter-Based RNG", arXiv:2004.06278),
// four rounds, of which the upper half of the last square is used. The counter is the row-major
// global index of the element. Its key is made per use site from the step's key:
//   key64 = mix(key[0] + 2^32 key[1])        mix: increment and finaliser of splitmix64 (Steele et
//                                            al. 2014)
//   site_key = (key64 * site) | 1            site: an odd 64-bit constant from the site's name
#pragma once

#include <cstdint>
#include <string_view>

#include "minka/frontend/tensor.h"

namespace minka {

// The generator on the host: 32 random bits.
uint32_t SquaresBits(uint64_t counter, uint64_t key);
uint64_t MixKey(uint64_t key);
// The odd constant of a named use site.
uint64_t SiteConstant(std::string_view name);
inline uint64_t SiteKey(uint64_t mixed_key, uint64_t site) { return (mixed_key * site) | 1; }

// key64 of the step's key, u32[2].
Tensor MixKey(Tensor key);

// u64[dims]: SquaresBits(stride * index + offset, SiteKey(mixed_key, site)) in the upper half,
// other bits in the lower. `mixed_key` comes from MixKey.
Tensor RandomBits(Tensor mixed_key, uint64_t site, const std::vector<int64_t>& dims, int64_t stride,
                  int64_t offset);

// pred[dims]: true with probability `probability` (resolution 2^-32), independently per element,
// as SquaresBits(index, SiteKey(mixed_key, site)) < probability * 2^32 says.
Tensor RandomMask(Tensor mixed_key, uint64_t site, const std::vector<int64_t>& dims,
                  double probability);

}  // namespace minka
