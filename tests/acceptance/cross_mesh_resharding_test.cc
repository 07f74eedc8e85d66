// Alpa's tests of cross-mesh resharding (MLSys'23) with the same arrays, and random ones: what
// every device of the second mesh holds is its part of what the first one has.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/driver/start_session.h"
#include "minka/program/pipeline_program.h"
#include "minka/runtime/mesh/local_devices.h"
#include "minka/runtime/mesh/split_array.h"
#include "minka/runtime/pipeline/session.h"
#include "minka/sharding/testing/random_sharding.h"

namespace minka {
namespace {

constexpr int kDevicesOfMesh = 4;

struct Case {
  const char *mesh, *from, *to;
  std::vector<int64_t> dims;
};

std::vector<Case> AlpasCases() {
  return {{"1x2", "[-,-,-]", "[y,-,-]", {4, 8, 16}},  {"1x2", "[y,-,-]", "[y,-,-]", {4, 8, 16}},
          {"1x2", "[-,y,-]", "[y,-,-]", {4, 8, 16}},  {"1x2", "[-,-,-]", "[-,-,-]", {4, 8, 16}},
          {"1x2", "[y,-,-]", "[-,-,-]", {4, 8, 16}},  {"1x2", "[-,y,-]", "[-,-,-]", {4, 8, 16}},
          {"1x2", "[-,y,-]", "[-,-,-]", {3, 8, 2}},   {"1x4", "[-,-,-]", "[-,-,-]", {6, 8, 16}},
          {"2x2", "[x,y,-]", "[-,-,-]", {2, 64, 64}}, {"2x2", "[x,y,-]", "[x,-,y]", {64, 64, 64}}};
}

struct Transfer {
  Shape shape;
  ArraySlot from, to;
  Mesh from_mesh, to_mesh;
};

Transfer TransferOf(const Case& which) {
  const Shape shape{ElementType::kS32, which.dims};
  const Mesh mesh = *Mesh::Parse(which.mesh);
  return {shape,
          {"x", shape, *ParseSharding(which.from, mesh)},
          {"x", shape, *ParseSharding(which.to, mesh)},
          mesh,
          mesh};
}

// Where each device that wants the same receives a piece of it and copies the others' (a local
// all-gather), or one receives all for all (a broadcast).
enum class Ways { kAsPlanned, kInPieces };

// A mesh that sends what it is given to another one, which keeps it.
PipelineProgram ProgramOf(const Transfer& transfer, Ways ways) {
  PipelineProgram program{.meshes = std::vector<MeshProgram>(2)};
  MeshProgram &from = program.meshes[0], &to = program.meshes[1];
  from.mesh = transfer.from_mesh;
  from.slots = {transfer.from};
  from.instructions = {SendInstruction{.slot = 0, .channel = 0}};
  to.mesh = transfer.to_mesh;
  to.slots = {transfer.to};
  to.instructions = {ReceiveInstruction{.slot = 0, .channel = 0}};
  program.parameters = {{{.mesh = 0, .slot = 0}}};
  program.results = {{.mesh = 1, .slot = 0}};
  program.channels = {{.from = {0, 0}, .to = {1, 0}}};
  SetTiles(program);
  if (ways == Ways::kAsPlanned) return program;
  const ArrayOnMesh source{transfer.from.sharding, from.mesh,
                           std::vector<int>(from.mesh.num_devices(), 0)};
  const ArrayOnMesh destination{transfer.to.sharding, to.mesh,
                                std::vector<int>(to.mesh.num_devices(), 1)};
  TileLists lists =
      PackTiles(PlanCrossMesh(transfer.shape, source, destination, {.min_piece_bytes = 1}),
                transfer.shape, source, destination);
  from.tile_lists = {std::move(lists.sent)};
  to.tile_lists = {std::move(lists.received)};
  return program;
}

Literal RandomLiteral(const Shape& shape, std::mt19937_64& random) {
  std::string bytes(static_cast<size_t>(shape.num_bytes()), '\0');
  const auto bits =
      shape.type == ElementType::kPred ? 1 : std::min<int64_t>(ElementBits(shape.type), 8);
  for (char& byte : bytes) byte = static_cast<char>(random() >> (64 - bits));
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

void ExpectArrives(Session& session, const Transfer& transfer, Ways ways, const Literal& value) {
  auto executor = session.Load(ProgramOf(transfer, ways));
  ASSERT_TRUE(executor.ok()) << Message(executor.status());
  DistributedArray argument = (*executor)->Put(0, value).value();
  DistributedArray* const arguments[] = {&argument};
  // Once more with what the first time has left.
  for (int step = 0; step < 2; ++step) {
    auto results = (*executor)->Run(arguments);
    ASSERT_TRUE(results.ok()) << Message(results.status());
    const auto parts = results->front().PartsToHost();
    ASSERT_TRUE(parts.ok()) << Message(parts.status());
    ASSERT_EQ(static_cast<int64_t>(parts->size()), transfer.to_mesh.num_devices());
    for (size_t device = 0; device < parts->size(); ++device) {
      const std::string part = TakePart(*value.bytes, transfer.shape, transfer.to.sharding,
                                        transfer.to_mesh, static_cast<int64_t>(device));
      EXPECT_TRUE((*parts)[device] == part) << "device " << device;
    }
  }
}

enum class Kind { kLocal, kWorkers };

class CrossMeshResharding : public testing::TestWithParam<Kind> {
 protected:
  CrossMeshResharding() {
    if (GetParam() == Kind::kLocal) {
      session_ = std::make_unique<LocalSession>(
          OpenLocalDevices({.num_devices = 2 * kDevicesOfMesh}).value());
      return;
    }
    auto session = StartWorkers({kDevicesOfMesh, kDevicesOfMesh}, {.binary = MINKA_BINARY});
    MINKA_CHECK(session.ok(), "{}", Message(session.status()));
    session_ = *std::move(session);
  }

  std::unique_ptr<Session> session_;
};

TEST_P(CrossMeshResharding, AlpasCasesArrive) {
  std::mt19937_64 random(1);
  for (const Case& which : AlpasCases()) {
    const Transfer transfer = TransferOf(which);
    for (const Ways ways : {Ways::kAsPlanned, Ways::kInPieces}) {
      SCOPED_TRACE(std::string(which.from) + " to " + which.to + " on " + which.mesh);
      ExpectArrives(*session_, transfer, ways, RandomLiteral(transfer.shape, random));
    }
  }
}

Mesh RandomMesh(std::mt19937_64& random) {
  const char* meshes[] = {"1", "2", "3", "4", "2x2", "1x3"};
  return *Mesh::Parse(meshes[random() % std::size(meshes)]);
}

TEST_P(CrossMeshResharding, RandomArraysArrive) {
  std::mt19937_64 random(2);
  const ElementType types[] = {ElementType::kF32, ElementType::kBF16, ElementType::kPred,
                               ElementType::kF64, ElementType::kU8,   ElementType::kS4};
  for (int round = 0; round < 100; ++round) {
    Transfer transfer{.from_mesh = RandomMesh(random), .to_mesh = RandomMesh(random)};
    Shape& shape = transfer.shape;
    shape.type = types[random() % std::size(types)];
    const auto rank = static_cast<int>(random() % 4);
    // Some so large that their tiles go alone, and some empty.
    for (int dim = 0; dim < rank; ++dim) {
      shape.dims.push_back(static_cast<int64_t>(random() % 20 == 0 ? 0 : 1 + random() % 60));
    }
    transfer.from = {.name = "x", .sharding = RandomSharding(random, shape, transfer.from_mesh)};
    transfer.to = {.name = "x", .sharding = RandomSharding(random, shape, transfer.to_mesh)};
    transfer.from.shape = transfer.to.shape = shape;
    const Ways ways = random() % 2 == 0 ? Ways::kAsPlanned : Ways::kInPieces;
    SCOPED_TRACE(TransfersText(ProgramOf(transfer, ways)));
    ExpectArrives(*session_, transfer, ways, RandomLiteral(shape, random));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Sessions, CrossMeshResharding,
                         testing::Values(Kind::kLocal, Kind::kWorkers), [](const auto& info) {
                           return info.param == Kind::kLocal ? "local" : "workers";
                         });

}  // namespace
}  // namespace minka
