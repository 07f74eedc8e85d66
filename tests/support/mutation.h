// Damaged modules: what a reader must refuse or accept, but never crash on.
#pragma once

#include <random>
#include <string>

namespace minka {

// Flips, copies, inserts or removes a few bytes.
void MutateBytes(std::mt19937_64& random, std::string& bytes);

// Changes one field of a message in protobuf's wire format, wherever it stands: another number or
// name, a field removed or doubled, so that most damage is to the meaning. Bytes that are no
// message are damaged as bytes.
void MutateFields(std::mt19937_64& random, std::string& bytes);

}  // namespace minka
