// Any message is a mesh's program or refused; what is accepted goes back to the wire and is
// accepted again, from then on without a change.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "google/protobuf/stubs/logging.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/runtime/worker/program_proto.h"
#include "minka/runtime/worker/testing/small_program.h"
#include "tests/support/mutation.h"

namespace {

minka::worker::MeshProgram RoundTrip(const minka::worker::MeshProgram& proto) {
  const auto received = minka::MeshProgramFromProto(proto, minka::SmallSession());
  MINKA_CHECK(received.ok(), "{}", minka::Message(received.status()));
  return minka::MeshProgramToProto(received->program, received->peers);
}

}  // namespace

// Protobuf writes a line for every name that is not UTF-8.
extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// Damage to bytes breaks the message most of the time, damage to fields leaves it one.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  std::mt19937_64 random(seed);
  if (random() % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string bytes(reinterpret_cast<const char*>(data), size);
  minka::MutateFields(random, bytes);
  const size_t new_size = std::min(bytes.size(), max_size);
  std::copy_n(bytes.data(), new_size, data);
  return new_size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  minka::worker::MeshProgram proto;
  if (!proto.ParseFromArray(data, static_cast<int>(size))) return 0;
  const auto received = minka::MeshProgramFromProto(proto, minka::SmallSession());
  if (!received.ok()) {
    MINKA_CHECK(!minka::Message(received.status()).empty());
    return 0;
  }
  const auto first = RoundTrip(minka::MeshProgramToProto(received->program, received->peers));
  MINKA_CHECK(RoundTrip(first).SerializeAsString() == first.SerializeAsString());
  return 0;
}
