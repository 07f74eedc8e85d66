#include "minka/tensors/checkpoint.h"

#include <filesystem>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/hash.h"
#include "minka/base/status.h"
#include "tests/support/temporary_folder.h"

namespace minka {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

CheckpointManifest About(int64_t step, const std::string& run = "first") {
  return {.step = step,
          .seed = UINT64_MAX,
          .run = run,
          .model = "mlp",
          .options = {{"layers", "2"}},
          .data = {{"source", "verses"}}};
}

const Shape kW{ElementType::kU8, {2}};

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() { fs::remove_all(folder_); }  // of an earlier repetition

  // A tensor "w" of two bytes; returns the checkpoint's folder.
  std::string Save(int64_t step, int keep = 9, const std::string& run = "first") const {
    auto writer = CheckpointWriter::Create(folder_.string(), About(step, run));
    EXPECT_TRUE(writer.ok()) << writer.status();
    const std::string file = writer->path() + "/state_00000.safetensors";
    const auto num_bytes =
        WriteTensorsInTurn(file, {{"w", kW}, {"empty", {ElementType::kF32, {0, 3}}}},
                           [](const std::string& name) -> absl::StatusOr<std::string> {
                             return name == "w" ? "ab" : "";
                           });
    EXPECT_TRUE(num_bytes.ok()) << num_bytes.status();
    const auto path = writer->Commit(
        {{"state_00000.safetensors", *num_bytes}},
        {{"w", kW, {1}, {{0, HashText(StableHash("ab"))}}},
         {"empty", {ElementType::kF32, {0, 3}}, {1, 1}, {{0, HashText(StableHash(""))}}}},
        keep);
    EXPECT_TRUE(path.ok()) << path.status();
    return *path;
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

  std::string Refusal() const {
    auto reader = CheckpointReader::Open(folder_.string());
    if (!reader.ok()) return Message(reader.status());
    return Message(reader->Read(*reader->Find("w"), {{{1}, {2}}}).status());
  }

  const fs::path folder_ =
      TemporaryPath(::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(CheckpointTest, GivesBackWhatWasSaved) {
  const std::string path = Save(100);
  EXPECT_EQ(path, (folder_ / "step_00000100").string());
  for (const std::string& opened : {path, folder_.string()}) {
    auto reader = CheckpointReader::Open(opened);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ(reader->path(), path);
    EXPECT_EQ(reader->manifest().seed, UINT64_MAX);
    EXPECT_EQ(reader->manifest().step, 100);
    EXPECT_EQ(reader->manifest().run, "first");
    EXPECT_EQ(reader->manifest().options, About(0).options);
    const auto parts = reader->Read(*reader->Find("w"), {{{0}, {2}}, {{1}, {2}}});
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_THAT(*parts, ElementsAre("ab", "b"));
    const FoundTensor empty = *reader->Find("empty");
    EXPECT_THAT(*reader->Read(empty, {{{0, 0}, {0, 3}}}), ElementsAre(""));
    EXPECT_FALSE(reader->Find("x").has_value());
  }
}

TEST_F(CheckpointTest, KeepsTheNewestByNumber) {
  for (const int64_t step : {5, 20, 99'999'999, 100'000'000}) Save(step, 3);
  EXPECT_THAT(Names(), ElementsAre("step_00000020", "step_100000000", "step_99999999"));
  EXPECT_EQ(CheckpointReader::Open(folder_.string())->manifest().step, 100'000'000);
}

TEST_F(CheckpointTest, KeepsWhatIsOfOtherRunsOrUnreadable) {
  for (const int64_t step : {1, 2, 8}) Save(step, 9, "second");
  Save(3);
  ASSERT_TRUE(WriteFile((folder_ / "step_00000003" / "manifest.json").string(), "{").ok());
  for (const int64_t step : {4, 5, 6}) Save(step, 1);
  EXPECT_THAT(Names(), ElementsAre("step_00000001", "step_00000002", "step_00000003",
                                   "step_00000006", "step_00000008"));
}

TEST_F(CheckpointTest, WhatWasJustSavedStaysBelowOlderSavesOfMoreSteps) {
  for (const int64_t step : {1, 2, 8, 9}) Save(step);
  EXPECT_EQ(Save(3, 1), (folder_ / "step_00000003").string());
  EXPECT_THAT(Names(), ElementsAre("step_00000003", "step_00000008", "step_00000009"));
}

TEST_F(CheckpointTest, ASecondSaveOfAStepReplacesTheFirst) {
  Save(7);
  EXPECT_EQ(Save(7), (folder_ / "step_00000007").string());
  EXPECT_THAT(Names(), ElementsAre("step_00000007"));
}

TEST_F(CheckpointTest, WhatAnInterruptedSaveLeftIsNoCheckpointAndGoesWithTheNextSave) {
  Save(7);
  fs::copy(folder_ / "step_00000007", folder_ / ".partial_step_00000009");
  fs::copy(folder_ / "step_00000007", folder_ / ".removed_step_00000008");
  EXPECT_EQ(CheckpointReader::Open(folder_.string())->manifest().step, 7);
  Save(10);
  EXPECT_THAT(Names(), ElementsAre("step_00000007", "step_00000010"));
}

TEST_F(CheckpointTest, ASaveThatIsGivenUpLeavesNothing) {
  {
    auto writer = CheckpointWriter::Create(folder_.string(), About(1));
    ASSERT_TRUE(writer.ok());
    EXPECT_THAT(Names(), ElementsAre(".partial_step_00000001"));
  }
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CheckpointTest, FoldersThatCannotBeWrittenAreRefusedByName) {
  EXPECT_TRUE(CheckCanSave((folder_ / "new" / "run").string()).ok());
  EXPECT_TRUE(fs::is_empty(folder_ / "new" / "run"));
  ASSERT_TRUE(WriteFile((folder_ / "file").string(), "").ok());
  const std::string below_file = (folder_ / "file" / "run").string();
  EXPECT_EQ(Message(CheckCanSave(below_file)),
            "cannot make the folder " + below_file + ": Not a directory");
  // Nobody, not even root, makes files there.
  EXPECT_THAT(
      Message(CheckCanSave("/proc")),
      StartsWith("no checkpoint can be saved to /proc: cannot write /proc/.partial_probe: "));
}

TEST_F(CheckpointTest, DamagedFilesAreRefusedByName) {
  const fs::path step = Save(7);
  const std::string file = (step / "state_00000.safetensors").string();
  const std::string contents = *ReadFile(file);
  ASSERT_TRUE(WriteFile(file, contents.substr(0, contents.size() - 1)).ok());
  EXPECT_EQ(Refusal(), fmt::format("{} has {} bytes, its checkpoint's manifest says {}: it is "
                                   "damaged",
                                   file, contents.size() - 1, contents.size()));
  std::string changed = contents;
  changed.back() ^= 1;
  ASSERT_TRUE(WriteFile(file, changed).ok());
  EXPECT_EQ(Refusal(), file + " is damaged: its 'w' is not what the manifest has the hash of");
  fs::remove(file);
  EXPECT_EQ(Refusal(), "cannot open " + file + ": No such file or directory");
  fs::remove_all(step);
  EXPECT_EQ(Refusal(),
            fmt::format("{} is no checkpoint (manifest.json is not there) and holds none "
                        "(step_...)",
                        folder_.string()));
}

TEST_F(CheckpointTest, DamagedManifestsAreRefusedByName) {
  const std::string manifest = (fs::path(Save(7)) / "manifest.json").string();
  const std::string json = *ReadFile(manifest);
  for (size_t length = 0; length < json.size() - 2; length += 7) {
    ASSERT_TRUE(WriteFile(manifest, json.substr(0, length)).ok());
    EXPECT_THAT(Refusal(), HasSubstr(manifest + ": not JSON: "));
  }
  std::string edited = json;
  edited.replace(edited.find("\"step\": 7"), 9, "\"step\": 8");
  ASSERT_TRUE(WriteFile(manifest, edited).ok());
  EXPECT_EQ(Refusal(),
            manifest + ": the checksum does not fit: the manifest was damaged or edited");
}

TEST_F(CheckpointTest, OnlyTilesThatAreAskedForAreRead) {
  const Shape tile{ElementType::kU8, {1, 2}};
  const CheckpointTensor tensor{.name = "w",
                                .shape = {ElementType::kU8, {2, 4}},
                                .grid = {2, 2},
                                .tiles = {{0, HashText(StableHash("ab"))},
                                          {1, HashText(StableHash("cd"))},
                                          {0, HashText(StableHash("ef"))},
                                          {1, HashText(StableHash("gh"))}}};
  {
    auto writer = CheckpointWriter::Create(folder_.string(), About(1));
    ASSERT_TRUE(writer.ok());
    std::vector<CheckpointFile> files;
    const std::map<std::string, std::string> contents[] = {{{"w[0]", "ab"}, {"w[2]", "ef"}},
                                                           {{"w[1]", "cd"}, {"w[3]", "gh"}}};
    for (const auto& bytes : contents) {
      std::map<std::string, Shape> shapes;
      for (const auto& [name, of_tile] : bytes) shapes[name] = tile;
      files.push_back({fmt::format("{}.safetensors", files.size()), 0});
      const auto written = WriteTensorsInTurn(
          writer->path() + "/" + files.back().name, shapes,
          [&](const std::string& name) -> absl::StatusOr<std::string> { return bytes.at(name); });
      ASSERT_TRUE(written.ok()) << written.status();
      files.back().num_bytes = *written;
    }
    ASSERT_TRUE(writer->Commit(files, {tensor}, 1).ok());
  }
  auto reader = CheckpointReader::Open(folder_.string());
  ASSERT_TRUE(reader.ok());
  const FoundTensor stored = *reader->Find("w");
  EXPECT_EQ(*stored.saved.front(), tensor);
  const auto parts = reader->Read(stored, {{{0, 0}, {2, 4}}, {{0, 1}, {2, 3}}});
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_THAT(*parts, ElementsAre("abcdefgh", "bcfg"));
  fs::remove(folder_ / "step_00000001" / "1.safetensors");
  auto again = CheckpointReader::Open(folder_.string());
  EXPECT_THAT(*again->Read(stored, {{{0, 0}, {2, 2}}}), ElementsAre("abef"));
  EXPECT_THAT(Message(again->Read(stored, {{{0, 1}, {2, 3}}}).status()),
              HasSubstr("1.safetensors: No such file or directory"));
}

// "whole" is saved as one tensor, "stack" as its three rows.
TEST_F(CheckpointTest, RowsAreFoundInWholesAndWholesInRows) {
  const Shape whole{ElementType::kS8, {3, 2}}, row{ElementType::kS8, {1, 2}};
  const std::map<std::string, std::string> bytes = {
      {"whole", "abcdef"}, {"stack[0]", "gh"}, {"stack[1]", "ij"}, {"stack[2]", "kl"}};
  auto writer = CheckpointWriter::Create(folder_.string(), About(1));
  ASSERT_TRUE(writer.ok());
  std::map<std::string, Shape> shapes;
  std::vector<CheckpointTensor> tensors;
  for (const auto& [name, contents] : bytes) {
    shapes[name] = name == "whole" ? whole : row;
    tensors.push_back({name, shapes[name], {1, 1}, {{0, HashText(StableHash(contents))}}});
  }
  const auto written = WriteTensorsInTurn(
      writer->path() + "/0.safetensors", shapes,
      [&](const std::string& name) -> absl::StatusOr<std::string> { return bytes.at(name); });
  ASSERT_TRUE(written.ok()) << written.status();
  ASSERT_TRUE(writer->Commit({{"0.safetensors", *written}}, tensors, 1).ok());

  auto reader = CheckpointReader::Open(folder_.string());
  ASSERT_TRUE(reader.ok());
  const FoundTensor stack = *reader->Find("stack"), row_of_whole = *reader->Find("whole[1]");
  EXPECT_EQ(stack.shape, whole);
  EXPECT_THAT(*reader->Read(stack, {{{0, 0}, {3, 2}}, {{1, 1}, {3, 2}}}),
              ElementsAre("ghijkl", "jl"));
  EXPECT_EQ(row_of_whole.shape, row);
  EXPECT_THAT(*reader->Read(row_of_whole, {{{0, 0}, {1, 2}}, {{0, 1}, {1, 2}}}),
              ElementsAre("cd", "d"));
  EXPECT_FALSE(reader->Find("whole[3]").has_value());
  EXPECT_FALSE(reader->Find("stack[3]").has_value());
}

TEST_F(CheckpointTest, FilesThatDidNotComeHereAreRefused) {
  auto writer = CheckpointWriter::Create(folder_.string(), About(1));
  ASSERT_TRUE(writer.ok());
  const std::string file = writer->path() + "/state.safetensors";
  EXPECT_EQ(Message(writer->Commit({{"state.safetensors", 9}}, {}, 1).status()),
            file +
                " has not come here with the 9 bytes that were written: a checkpoint's folder "
                "must be one that the driver and all workers share");
}

TEST(CheckpointManifest, RefusesWhatDoesNotFit) {
  CheckpointManifest manifest = About(3);
  manifest.files = {{"state.safetensors", 10}};
  manifest.tensors = {{"w", {ElementType::kBF16, {4, 5}}, {2, 1}, {{0, "01"}, {0, "23"}}},
                      {"s", {ElementType::kS32, {}}, {}, {{0, "45"}}}};
  const std::string json = ManifestToJson(manifest);
  ASSERT_TRUE(ParseManifest(json).ok()) << ParseManifest(json).status();
  EXPECT_EQ(*ParseManifest(json), manifest);
  const auto refusal = [&](const std::string& from, const std::string& to) {
    std::string changed = json;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return Message(ParseManifest(changed.replace(at, from.size(), to)).status());
  };
  EXPECT_EQ(refusal("minka-checkpoint", "other"), "the format is 'other', not 'minka-checkpoint'");
  EXPECT_EQ(refusal("\"schema_version\": 2", "\"schema_version\": 1"),
            "schema_version 1 is not 2, which this minka reads");
  EXPECT_EQ(refusal("\"step\": 3", "\"step\": -3"), "the manifest has no number 'step'");
  EXPECT_EQ(refusal("\"step\": 3", "\"step\": 18446744073709551615"),
            "the manifest: 'step' is too large");
  EXPECT_EQ(refusal("18446744073709551615", "18446744073709551616"),
            "the seed '18446744073709551616' is no number below 2^64");
  EXPECT_EQ(refusal("\"layers\": \"2\"", "\"layers\": 2"),
            "'options' has 'layers', which is no text");
  EXPECT_EQ(refusal("state.safetensors", "../state"),
            "file 0: '../state' is no name of a file, or that of another");
  EXPECT_EQ(refusal("bf16[4,5]", "bf16[4,]"), "tensor 'w': 'bf16[4,]' is no shape");
  EXPECT_EQ(refusal("bf16[4,5]", "bf16[4294967296,4294967296]"),
            "tensor 'w': 'bf16[4294967296,4294967296]' is no shape");
  EXPECT_EQ(refusal("\"file\": 0", "\"file\": 1"), "tensor 'w' is in file 1 of 1");
  EXPECT_EQ(refusal("bf16[4,5]", "bf16[5,4]"),
            "tensor 'w': the grid [2,1] does not divide bf16[5,4]");
  EXPECT_EQ(refusal("bf16[4,5]", "bf16[4]"), "tensor 'w': the grid [2,1] does not divide bf16[4]");
  EXPECT_EQ(refusal("    2,\n    1", "    2,\n    0"), "tensor 'w': 0 is no number of tiles");
  EXPECT_EQ(refusal("    2,\n    1", "    2,\n    5"),
            "tensor 'w': 2 tiles do not make up its grid");
  EXPECT_EQ(refusal("\"s\"", "\"w\""), "tensor 'w' is listed twice");
  EXPECT_EQ(refusal("\"checksum\"", "\"check\""), "the manifest has no text 'checksum'");
}

}  // namespace
}  // namespace minka
