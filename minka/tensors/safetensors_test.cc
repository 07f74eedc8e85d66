#include "minka/tensors/safetensors.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using ::testing::HasSubstr;

const std::string kNumpyFile = std::string(MINKA_TESTDATA) + "/numpy_types.safetensors";

std::string Length(uint64_t bytes) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &bytes, 8);
  return text;
}

std::string FileOf(const std::string& header, const std::string& data) {
  return Length(header.size()) + header + data;
}

std::string Refusal(const std::string& contents) {
  return Message(ParseTensors(contents).status());
}

template <typename T>
std::vector<T> Values(const HostTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

class TemporaryFile : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  const std::string path_ =
      (std::filesystem::temp_directory_path() / fmt::format("minka_{}.safetensors", getpid()))
          .string();
};

TEST(ReadTensors, ReadsWhatPythonWrote) {
  const auto file = ReadTensors(kNumpyFile);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata.at("format"), "np");
  const auto shape = [&](const std::string& name) {
    return ToString(file->tensors.at(name).shape);
  };
  EXPECT_EQ(shape("layer.weight"), "f32[2,3]");
  EXPECT_EQ(shape("layer.bias"), "bf16[2]");
  EXPECT_EQ(shape("half"), "f16[1,1]");
  EXPECT_EQ(shape("step"), "s64[]");
  EXPECT_EQ(shape("mask"), "pred[3]");
  EXPECT_EQ(shape("spectrum"), "c64[1]");
  EXPECT_EQ(shape("empty"), "f32[0,4]");
  EXPECT_EQ(shape("größe"), "u16[1]");
  EXPECT_EQ(Values<float>(file->tensors.at("layer.weight")),
            (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(Values<uint16_t>(file->tensors.at("layer.bias")),
            (std::vector<uint16_t>{0x3f80, 0xc000}));
  EXPECT_EQ(Values<int64_t>(file->tensors.at("step")), (std::vector<int64_t>{7}));
  EXPECT_EQ(file->tensors.at("mask").bytes, std::string("\1\0\1", 3));
  EXPECT_EQ(file->tensors.size(), 12u);
}

TEST_F(TemporaryFile, WritesTheSameBytesAsPython) {
  ASSERT_TRUE(WriteTensors(path_, *ReadTensors(kNumpyFile)).ok());
  EXPECT_EQ(*ReadFile(path_), *ReadFile(kNumpyFile));
}

TEST_F(TemporaryFile, NothingButAHeaderIsAFile) {
  ASSERT_TRUE(WriteTensors(path_, {}).ok());
  const auto file = ReadTensors(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->tensors.empty());
}

TEST_F(TemporaryFile, WhatTheFormatCannotHoldIsRefused) {
  const auto refusal = [&](const std::string& name, const Shape& shape, size_t num_bytes) {
    return Message(
        WriteTensors(path_, {.tensors = {{name, {shape, std::string(num_bytes, '\0')}}}}));
  };
  EXPECT_EQ(refusal("x", {ElementType::kC128, {1}}, 16),
            "tensor 'x': safetensors files have no type c128");
  EXPECT_EQ(refusal("x", {ElementType::kS4, {1}}, 1),
            "tensor 'x': safetensors files have no type s4");
  EXPECT_EQ(refusal("x", {ElementType::kF32, {2}}, 4), "tensor 'x': f32[2] takes 8 bytes, not 4");
  EXPECT_EQ(refusal("__metadata__", {ElementType::kF32, {}}, 4),
            "'__metadata__' cannot be a tensor's name");
  EXPECT_THAT(refusal("\xff", {ElementType::kF32, {}}, 4), HasSubstr("is not UTF-8"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST(ReadTensors, FilesThatAreNotThereAreNamed) {
  EXPECT_EQ(Message(ReadTensors("/nowhere/x").status()),
            "cannot open /nowhere/x: No such file or directory");
  EXPECT_EQ(Message(ReadTensors("/tmp").status()), "/tmp is a directory, not a file");
  EXPECT_EQ(Message(ReadTensors("/dev/null").status()),
            "/dev/null: 0 bytes are no safetensors file");
}

TEST(ParseTensors, RefusesHeadersThatDoNotFit) {
  EXPECT_EQ(Refusal("1234"), "4 bytes are no safetensors file");
  EXPECT_EQ(Refusal(Length(1000) + "{}"),
            "a header of 1000 bytes in a file of 10: it is cut short");
  EXPECT_EQ(Refusal(Length(UINT64_MAX) + "{}"),
            "a header of 18446744073709551615 bytes; the format allows 100000000");
  EXPECT_THAT(Refusal(FileOf("{\"a\":", "")), HasSubstr("header: not JSON: "));
  EXPECT_EQ(Refusal(FileOf("[]", "")), "the header is not an object");
  EXPECT_EQ(Refusal(FileOf(R"({"__metadata__":{"n":1}})", "")),
            "__metadata__ has 'n', which is no text");
}

TEST(ParseTensors, RefusesDescriptionsThatDoNotFit) {
  const auto refusal = [](const std::string& description) {
    return Refusal(FileOf(R"({"w":)" + description + "}", std::string(8, '\0')));
  };
  EXPECT_EQ(refusal("[]"), "tensor 'w': its description is not an object");
  EXPECT_EQ(refusal(R"({"shape":[2],"data_offsets":[0,8]})"), "tensor 'w': no text 'dtype'");
  EXPECT_EQ(refusal(R"({"dtype":"F6_E2M3","shape":[2],"data_offsets":[0,8]})"),
            "tensor 'w': type 'F6_E2M3' is not supported");
  EXPECT_EQ(refusal(R"({"dtype":"F32","data_offsets":[0,8]})"), "tensor 'w': no list 'shape'");
  EXPECT_EQ(refusal(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
            "tensor 'w': 'shape' has -2, which is no size");
  EXPECT_EQ(refusal(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
            "tensor 'w': 'data_offsets' is not a range [begin, end]");
  EXPECT_EQ(refusal(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
            "tensor 'w': f32[3] takes 12 bytes, 'data_offsets' gives it 8");
  EXPECT_EQ(refusal(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
            "tensor 'w': a shape of more than 2^63 bytes");
  EXPECT_EQ(refusal(R"({"dtype":"F32","shape":[2],"data_offsets":[1,9]})"),
            "tensor 'w' ends at byte 9, the file has 8 behind its header: it is cut short");
  EXPECT_EQ(refusal(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
            "tensor 'w' begins at byte 4, the tensor before it ends at 0");
  EXPECT_EQ(refusal(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
            "4 bytes behind the last tensor");
}

TEST(ParseTensors, RefusesOverlapsAndTwins) {
  const std::string first = R"("a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]})";
  EXPECT_EQ(Refusal(FileOf("{" + first + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                           "12345678")),
            "tensor 'b' begins at byte 4, the tensor before it ends at 6");
  EXPECT_EQ(Refusal(FileOf("{" + first + "," + first + "}", "123456")),
            "header: JSON that gives 'a' twice");
}

TEST(ParseTensors, RefusesPredicatesThatAreNeitherTrueNorFalse) {
  EXPECT_EQ(
      Refusal(FileOf(R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", "\1\1\xff")),
      "tensor 'm': element 2 is 255, BOOL is 0 or 1");
}

TEST_F(TemporaryFile, TensorsAreWrittenInTurnAndReadOneByOne) {
  const auto file = ReadTensors(kNumpyFile);
  ASSERT_TRUE(file.ok()) << file.status();
  std::map<std::string, Shape> shapes;
  for (const auto& [name, tensor] : file->tensors) shapes[name] = tensor.shape;
  const auto bytes = [&](const std::string& name) -> absl::StatusOr<std::string> {
    return file->tensors.at(name).bytes;
  };
  const auto num_bytes = WriteTensorsInTurn(path_, shapes, bytes);
  ASSERT_TRUE(num_bytes.ok()) << num_bytes.status();
  EXPECT_EQ(*num_bytes, static_cast<int64_t>(std::filesystem::file_size(path_)));
  EXPECT_EQ(Message(WriteTensorsInTurn(path_, shapes, bytes).status()),
            "cannot write " + path_ + ": File exists");
  const auto reader = TensorReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const auto& [name, shape] : shapes) {
    ASSERT_NE(reader->Find(name), nullptr) << name;
    EXPECT_EQ(*reader->Find(name), shape);
    EXPECT_EQ(*reader->Read(name), file->tensors.at(name).bytes) << name;
  }
  EXPECT_EQ(reader->Find("nothing"), nullptr);
}

TEST_F(TemporaryFile, WhatCannotBeWrittenInTurnLeavesNoFile) {
  const std::map<std::string, Shape> shapes = {{"w", {ElementType::kU8, {4}}}};
  const auto with = [&](absl::StatusOr<std::string> bytes) {
    return Message(
        WriteTensorsInTurn(path_, shapes, [&](const std::string&) { return bytes; }).status());
  };
  EXPECT_EQ(with("abc"), "tensor 'w': u8[4] takes 4 bytes, not 3");
  EXPECT_EQ(with(absl::UnavailableError("gone")), "gone");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TemporaryFile, HeadersThatLieAreRefusedBeforeATensorIsRead) {
  const auto refusal = [&](const std::string& contents) {
    EXPECT_TRUE(WriteFile(path_, contents).ok());
    return Message(TensorReader::Open(path_).status());
  };
  const std::string header = R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  EXPECT_EQ(refusal(FileOf(header, "abcd")), "");
  EXPECT_THAT(refusal(FileOf(header, "abc")), HasSubstr(path_ + ": tensor 'w' ends at byte 4"));
  EXPECT_THAT(refusal("abc"), HasSubstr(path_ + ": 3 bytes are no safetensors file"));
  EXPECT_THAT(refusal(Length(99)), HasSubstr("it is cut short"));
}

}  // namespace
}  // namespace minka
