#include "minka/ir/hlo_proto.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/ir/builder.h"
#include "minka/ir/hlo_message.h"
#include "minka/ir/module_equality.h"
#include "minka/ir/verifier.h"

namespace minka {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kTestdata = MINKA_TESTDATA;
const std::string kJaxModules = kTestdata + "/../../../tests/testdata/jax";

Module Import(const std::string& bytes) {
  auto module = ImportHlo(bytes);
  EXPECT_TRUE(module.ok()) << module.status();
  return module.ok() ? *std::move(module) : Module();
}

std::string ImportError(const std::string& bytes) { return Message(ImportHlo(bytes).status()); }

Module FromText(const std::string& text) {
  auto module = ParseHloText(text);
  EXPECT_TRUE(module.ok()) << module.status();
  return module.ok() ? *std::move(module) : Module();
}

// The proto of a module in text, for tests that change it before import.
hlo::HloModuleProto ProtoFromText(const std::string& text) {
  auto proto = ParseHlo(text);
  EXPECT_TRUE(proto.ok()) << proto.status();
  return proto.ok() ? *std::move(proto) : hlo::HloModuleProto();
}

// The text of a module whose entry has the lines as instructions.
std::string Entry(const std::string& lines) {
  return "HloModule m\nENTRY main {\n" + lines + "}\n";
}

constexpr char kSum[] = R"(HloModule m

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

ENTRY %main (p: f32[4]) -> (f32[4]) {
  %p = f32[4] parameter(0)
  %r = f32[4] all-reduce(%p), to_apply=%add, replica_groups={{0,1},{2,3}}
  ROOT %tuple = (f32[4]) tuple(%r)
}
)";

hlo::HloInstructionProto& AllReduce(hlo::HloModuleProto& proto) {
  return *proto.mutable_computations(1)->mutable_instructions(1);
}

std::vector<std::vector<int64_t>> GroupsOf(const hlo::HloModuleProto& proto) {
  const Module module = Import(proto.SerializeAsString());
  return module.entry_computation().instructions.at(1).As<CollectiveAttributes>().groups;
}

class JaxModule : public testing::TestWithParam<std::string> {};

TEST_P(JaxModule, SurvivesExportAndText) {
  const auto bytes = ReadFile(kJaxModules + "/" + GetParam());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const Module module = Import(*bytes);
  EXPECT_EQ(Difference(module, Import(ExportHlo(module))), "");
  EXPECT_EQ(Difference(module, FromText(HloText(module))), "");
}

std::vector<std::string> JaxModules() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(kJaxModules)) {
    if (file.path().extension() == ".pb") names.push_back(file.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Jax, JaxModule, testing::ValuesIn(JaxModules()), [](const auto& info) {
  return std::filesystem::path(info.param).stem().string();
});

// testdata/opcodes.hlo is what XLA's parser reads, too (jaxlib 0.8.1).
TEST(HloText, EveryOpcodeIsWrittenAsItWasRead) {
  const auto text = ReadFile(kTestdata + "/opcodes.hlo");
  ASSERT_TRUE(text.ok()) << text.status();
  const Module module = FromText(*text);
  EXPECT_EQ(HloText(module), *text);
  EXPECT_EQ(Difference(module, FromText(HloText(module))), "");
  EXPECT_EQ(Difference(module, Import(ExportHlo(module))), "");

  std::set<Opcode> seen;
  for (const Computation& computation : module.computations) {
    for (const Instruction& instruction : computation.instructions) seen.insert(instruction.opcode);
  }
  for (int opcode = 0; opcode <= static_cast<int>(Opcode::kOther); ++opcode) {
    EXPECT_TRUE(seen.contains(static_cast<Opcode>(opcode)))
        << OpcodeName(static_cast<Opcode>(opcode)) << " is not in opcodes.hlo";
  }
}

TEST(HloText, ReadsWhatXlaPrints) {
  const Module module = FromText(R"(
HloModule jit_f, entry_computation_layout={(f32[2,3]{1,0})->f32[3,2]{0,1}}, is_scheduled=true

// a comment
main.3 {
  Arg_0.1 = f32[2,3]{1,0} parameter(0), metadata={op_name="x" source_file="a.py" source_line=3}
  constant.1 = f32[2]{0:T(256)} constant({ 1e+10, -0.5 })
  /* another */ %c = f32[2,3] broadcast(f32[2]{0} constant.1), dimensions={0}
  s = f32[2,3]{1,0} add(Arg_0.1, /*index=1*/f32[2,3]{1,0} %c)
  ROOT t = f32[3,2]{0,1} transpose(s), dimensions={1,0}, frontend_attributes={k={"a": 1}}
}, execution_thread="main"

ENTRY %e { ROOT p = f32[] parameter(0) })");
  EXPECT_EQ(HloText(module), R"(HloModule jit_f

%main.3 (Arg_0.1: f32[2,3]) -> f32[3,2] {
  %Arg_0.1 = f32[2,3] parameter(0), metadata={op_name="x"}
  %constant.1 = f32[2] constant({10000000000, -0.5})
  %c = f32[2,3] broadcast(%constant.1), dimensions={0}
  %s = f32[2,3] add(%Arg_0.1, %c)
  ROOT %t = f32[3,2] transpose(%s), dimensions={1,0}, frontend_attributes={k="{\"a\": 1}"}
}

ENTRY %e (p: f32[]) -> (f32[]) {
  %p = f32[] parameter(0)
  ROOT %tuple = (f32[]) tuple(%p)
}
)");
}

TEST(HloText, ErrorsNameThePlace) {
  const auto error = [](const std::string& text) { return Message(ParseHloText(text).status()); };
  EXPECT_EQ(error("HloModul m"), "line 1, column 1: 'HloModule' expected");
  EXPECT_EQ(error("HloModule m"), "no computation is marked as ENTRY");
  EXPECT_EQ(error(Entry("x = f32[2] parameter(0)\ny = f32[2] add(x, z)\n")),
            "line 4, column 20: no 'z' before this line");
  EXPECT_EQ(error(Entry("x = f33[2] parameter(0)\n")),
            "line 3, column 8: 'f33' is no element type");
  EXPECT_EQ(error(Entry("x = f32[2] parameter(0), sharding={replicated}\n")),
            "line 3, column 35: 'parameter' has no attribute 'sharding' that is supported");
  EXPECT_EQ(error(Entry("x = f32[2] constant({1})\n")),
            "line 3, column 24: the constant has 4 bytes, its shape f32[2] needs 8");
  EXPECT_EQ(error(Entry("x = f32[2] constant({...})\n")),
            "line 3, column 22: the constant is elided");
  EXPECT_EQ(error(Entry("x = f32[-2] parameter(0)\n")),
            "line 3, column 12: dimension size -2 is negative");
  EXPECT_EQ(error(Entry("x = f32[2] parameter(0)\ny = f32[3] add(x, x)\n")),
            "'y' in 'main': add: result 0 is f32[2], declared f32[3]");
  EXPECT_THAT(error(Entry("x = " + std::string(100000, '(') + " parameter(0)\n")),
              HasSubstr("tuples are nested more than 32 deep"));
}

TEST(ImportHlo, TupleParametersBecomeSeveral) {
  const Module module =
      FromText(R"(HloModule m, input_output_alias={ {0, 1}: (1, {1, 0}, may-alias) }
ENTRY main {
  a = f32[1] parameter(0)
  t = (f32[2], (f32[3], s32[])) parameter(1)
  b = f32[5] parameter(2)
  inner = (f32[3], s32[]) get-tuple-element(t), index=1
  named = f32[3] get-tuple-element(inner), index=0
  flat = (f32[1], f32[3]) tuple(a, named)
  ROOT r = ((f32[1], f32[3]), f32[5]) tuple(flat, b)
})");
  EXPECT_EQ(HloText(module), R"(HloModule m, input_output_alias={ {1}: (2, {}, may-alias) }

ENTRY %main (a: f32[1], t.0: f32[2], named: f32[3], t.2: s32[], b: f32[5]) -> (f32[1], f32[3], f32[5]) {
  %a = f32[1] parameter(0)
  %b = f32[5] parameter(4)
  %named = f32[3] parameter(2)
  %t.0 = f32[2] parameter(1)
  %t.2 = s32[] parameter(3)
  ROOT %tuple = (f32[1], f32[3], f32[5]) tuple(%a, %named, %b)
}
)");
}

TEST(ImportHlo, RecognisesWrappedModules) {
  const Module module = FromText(kSum);
  hlo::HloModuleHolder holder;
  ASSERT_TRUE(holder.mutable_hlo_module()->ParseFromString(ExportHlo(module)));
  EXPECT_EQ(Difference(module, Import(holder.SerializeAsString())), "");
  // What HloProto and HloModuleProtoWithConfig have beside the module does not matter.
  EXPECT_EQ(Difference(module, Import(holder.SerializeAsString() + "\x12\x01x\x1a\x02yz")), "");
}

TEST(ImportHlo, ReadsGroupsFromEveryField) {
  const auto base = [] {
    hlo::HloModuleProto proto = ProtoFromText(kSum);
    AllReduce(proto).clear_collective_device_list();
    return proto;
  };
  const auto ids_01_23 = ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3));
  EXPECT_THAT(GroupsOf(ProtoFromText(kSum)), ids_01_23);

  hlo::HloModuleProto old = base();
  for (const int64_t first : {0, 2}) {
    auto* group = AllReduce(old).add_replica_groups();
    group->add_replica_ids(first);
    group->add_replica_ids(first + 1);
  }
  EXPECT_THAT(GroupsOf(old), ids_01_23);

  const auto iota = [](hlo::IotaReplicaGroupList* list) {
    list->set_num_replica_groups(2);
    list->set_num_devices_per_group(2);
    list->add_iota_reshape_dims(2);
    list->add_iota_reshape_dims(2);
    list->add_iota_transpose_perm(1);
    list->add_iota_transpose_perm(0);
  };
  const auto ids_02_13 = ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3));
  hlo::HloModuleProto nested = base();
  iota(AllReduce(nested).mutable_collective_device_list()->mutable_iota_replica_group_list());
  EXPECT_THAT(GroupsOf(nested), ids_02_13);
  hlo::HloModuleProto newer = base();
  iota(AllReduce(newer).mutable_iota_collective_device_list());
  EXPECT_THAT(GroupsOf(newer), ids_02_13);

  AllReduce(newer).set_mesh_axes_replica_group_list("mesh");
  EXPECT_EQ(ImportError(newer.SerializeAsString()),
            "in 'main': 'r': all-reduce: replica groups by mesh axes (field 93) are not supported; "
            "write them as lists of ids");
  AllReduce(nested)
      .mutable_collective_device_list()
      ->mutable_iota_replica_group_list()
      ->set_num_replica_groups(int64_t{1} << 62);
  EXPECT_THAT(ImportError(nested.SerializeAsString()), HasSubstr("do not hold the ids of [2,2]"));
}

TEST(ImportHlo, IdsMayCarryTheComputation) {
  hlo::HloModuleProto proto = ProtoFromText(kSum);
  for (auto& computation : *proto.mutable_computations()) {
    const int64_t high = computation.id() << 32;
    computation.set_root_id(high | computation.root_id());
    for (auto& instruction : *computation.mutable_instructions()) {
      instruction.set_id(high | instruction.id());
      for (int64_t& operand : *instruction.mutable_operand_ids()) operand |= high;
    }
  }
  EXPECT_EQ(Difference(FromText(kSum), Import(proto.SerializeAsString())), "");
}

TEST(ImportHlo, EntryIsFoundByName) {
  hlo::HloModuleProto proto = ProtoFromText(kSum);
  proto.clear_entry_computation_id();
  EXPECT_EQ(Difference(FromText(kSum), Import(proto.SerializeAsString())), "");
  proto.set_entry_computation_name("other");
  EXPECT_EQ(ImportError(proto.SerializeAsString()),
            "no computation has the entry's id 0 or name 'other'");
}

TEST(ImportHlo, ConstantsInOtherLayoutsBecomeRowMajor) {
  hlo::HloModuleProto proto = ProtoFromText(Entry("c = f32[2,3] constant({1,2,3,4,5,6})\n"));
  auto* literal = proto.mutable_computations(0)->mutable_instructions(0)->mutable_literal();
  auto* layout = literal->mutable_shape()->mutable_layout()->mutable_minor_to_major();
  std::swap((*layout)[0], (*layout)[1]);
  EXPECT_THAT(HloText(Import(proto.SerializeAsString())),
              HasSubstr("constant({{1, 3, 5}, {2, 4, 6}})"));
}

TEST(ImportHlo, ConstantsOfTupleShapeBecomeSeveral) {
  hlo::HloModuleProto proto =
      ProtoFromText(Entry("a = f32[] constant(1)\nb = s32[] constant(2)\n"));
  auto* instructions = proto.mutable_computations(0)->mutable_instructions();
  hlo::HloInstructionProto tuple = instructions->Get(1);
  tuple.mutable_shape()->set_element_type(13);
  tuple.mutable_literal()->Clear();
  for (const auto& part : *instructions) {
    *tuple.mutable_shape()->add_tuple_shapes() = part.shape();
    *tuple.mutable_literal()->add_tuple_literals() = part.literal();
  }
  instructions->Clear();
  *instructions->Add() = tuple;
  EXPECT_THAT(HloText(Import(proto.SerializeAsString())), HasSubstr(R"(-> (f32[], s32[]) {
  %b = f32[] constant(1)
  %constant = s32[] constant(2)
)"));
}

TEST(ImportHlo, UnknownFieldsSurviveAndPositionsDoNot) {
  hlo::HloModuleProto proto =
      ProtoFromText(Entry("p = f32[4] parameter(0)\nn = f32[4] negate(p)\n"));
  auto& negate = *proto.mutable_computations(0)->mutable_instructions(1);
  ASSERT_TRUE(negate.MergeFromString("\xc2\x02\x02\x08\x03"));  // 40 sharding
  ASSERT_TRUE(
      negate.MergeFromString("\x3a\x04\x1a\x02"
                             "a."));  // 7.3 source_file
  negate.set_statistics_viz("");
  ASSERT_TRUE(proto.MergeFromString("\x80\x01\x01"));  // 16 use_auto_spmd_partitioning
  proto.mutable_buffer_donor()->add_entries();

  const Module module = Import(proto.SerializeAsString());
  const auto& undecoded = module.entry_computation().instructions[1].undecoded;
  ASSERT_NE(undecoded, nullptr);
  EXPECT_EQ(*undecoded, "\xc2\x02\x02\x08\x03");
  EXPECT_EQ(module.entry_computation().instructions[0].undecoded, nullptr);
  ASSERT_NE(module.undecoded, nullptr);
  EXPECT_EQ(Difference(module, Import(ExportHlo(module))), "");
  EXPECT_EQ(Difference(module, FromText(HloText(module))), "");
  EXPECT_THAT(HloText(module), HasSubstr("negate(%p), minka_extra=\""));
}

std::string SourceLineOfSum(const hlo::HloModuleProto& proto) {
  const Module module = Import(proto.SerializeAsString());
  for (const Instruction& instruction : module.entry_computation().instructions) {
    if (instruction.opcode == Opcode::kNegate) return instruction.source_line;
  }
  return "no negate";
}

TEST(ImportHlo, LinesOfTheUsersProgramAreRead) {
  hlo::HloModuleProto proto =
      ProtoFromText(Entry("p = f32[4] parameter(0)\nn = f32[4] negate(p)\n"));
  EXPECT_EQ(SourceLineOfSum(proto), "");
  auto& metadata = *proto.mutable_computations(0)->mutable_instructions(1)->mutable_metadata();
  hlo::StackFrameIndex index;
  index.add_file_names("model.py");
  auto& location = *index.add_file_locations();
  location.set_file_name_id(1);
  location.set_line(12);
  index.add_stack_frames()->set_file_location_id(1);
  index.add_stack_frames()->set_file_location_id(7);
  proto.set_stack_frame_index(index.SerializeAsString());
  metadata.set_stack_frame_id(1);
  EXPECT_EQ(SourceLineOfSum(proto), "model.py:12");
  for (const int missing : {-1, 0, 2, 3}) {
    metadata.set_stack_frame_id(missing);
    EXPECT_EQ(SourceLineOfSum(proto), "");
  }
  index.add_file_names("lib/site-packages/layers.py");
  auto& package = *index.add_file_locations();
  package.set_file_name_id(2);
  package.set_line(5);
  auto& inner = *index.add_stack_frames();
  inner.set_file_location_id(2);
  proto.set_stack_frame_index(index.SerializeAsString());
  metadata.set_stack_frame_id(3);
  EXPECT_EQ(SourceLineOfSum(proto), "lib/site-packages/layers.py:5");
  inner.set_parent_frame_id(1);
  proto.set_stack_frame_index(index.SerializeAsString());
  EXPECT_EQ(SourceLineOfSum(proto), "model.py:12");
  inner.set_parent_frame_id(3);  // of itself
  proto.set_stack_frame_index(index.SerializeAsString());
  EXPECT_EQ(SourceLineOfSum(proto), "lib/site-packages/layers.py:5");
  metadata.clear_stack_frame_id();
  metadata.set_source_file("a.py");
  metadata.set_source_line(3);
  EXPECT_EQ(SourceLineOfSum(proto), "a.py:3");
  metadata.set_source_file("\xff");
  EXPECT_EQ(SourceLineOfSum(proto), "");
  proto.set_stack_frame_index("\xff\xff");
  metadata.clear_source_file();
  EXPECT_EQ(SourceLineOfSum(proto), "");
}

TEST(ParseHloText, LinesOfTheUsersProgramAreRead) {
  const Module module = FromText(
      Entry("p = f32[4] parameter(0)\n"
            "n = f32[4] negate(p), metadata={op_name=\"a\" source_file=\"b.py\" source_line=4}\n"));
  EXPECT_EQ(module.entry_computation().instructions[1].source_line, "b.py:4");
}

TEST(ImportHlo, BrokenModulesAreRefusedByName) {
  EXPECT_EQ(ImportError(""), "not an HLO module: there are no computations");
  EXPECT_EQ(ImportError("\xff\xff"), "not an HLO module: the bytes are no proto");
  const auto error = [](auto change) {
    hlo::HloModuleProto proto = ProtoFromText(kSum);
    change(proto);
    return ImportError(proto.SerializeAsString());
  };
  EXPECT_EQ(error([](auto& m) { AllReduce(m).set_operand_ids(0, 77); }),
            "in 'main': 'r': all-reduce: no instruction before it has the id 77");
  EXPECT_EQ(error([](auto& m) { AllReduce(m).set_called_computation_ids(0, 2); }),
            "in 'main': 'r': all-reduce: no computation before this one has the id 2");
  EXPECT_EQ(error([](auto& m) { AllReduce(m).set_id(4); }),
            "in 'main': 'r': an instruction before it has its id 4, too");
  EXPECT_EQ(error([](auto& m) { AllReduce(m).set_opcode("a b"); }),
            "in 'main': 'r': 'a b' is no opcode");
  EXPECT_EQ(error([](auto& m) { AllReduce(m).mutable_shape()->set_element_type(99); }),
            "in 'main': 'r': element type 99 is unknown");
  EXPECT_EQ(error([](auto& m) { AllReduce(m).mutable_shape()->set_dimensions(0, -1); }),
            "in 'main': 'r': dimension size -1 is negative");
  EXPECT_EQ(error([](auto& m) {
              AllReduce(m).mutable_shape()->set_dimensions(0, int64_t{1} << 40);
              AllReduce(m).mutable_shape()->add_dimensions(int64_t{1} << 40);
            }),
            "in 'main': 'r': f32[1099511627776,1099511627776] has too many elements");
  EXPECT_EQ(error([](auto& m) { AllReduce(m).mutable_shape()->add_is_dynamic_dimension(true); }),
            "in 'main': 'r': dimensions of unknown size are not supported");
  EXPECT_EQ(error([](auto& m) { m.mutable_computations(1)->set_root_id(99); }),
            "in 'main': no instruction has the root's id 99");
  EXPECT_EQ(error([](auto& m) {
              m.mutable_computations(1)->mutable_instructions(0)->set_parameter_number(1);
            }),
            "in 'main': there is no parameter 0");
  EXPECT_EQ(error([](auto& m) { m.mutable_input_output_alias()->add_entries(); }),
            "an alias of parameter 0 names no array");
}

// One instruction may name a large tuple many times: small bytes, but many operands.
TEST(ImportHlo, FlattenedOperandsAreLimited) {
  hlo::HloModuleProto proto = ProtoFromText(Entry("p = f32[] parameter(0)\n"));
  auto* computation = proto.mutable_computations(0);
  auto* tuple = computation->add_instructions();
  tuple->set_opcode("tuple");
  tuple->set_id(2);
  tuple->mutable_shape()->set_element_type(13);
  for (int i = 0; i < 10000; ++i) {
    tuple->add_operand_ids(1);
    tuple->mutable_shape()->add_tuple_shapes()->set_element_type(11);
  }
  auto* call = computation->add_instructions();
  call->set_opcode("custom-call");
  call->set_name("many");
  call->set_id(3);
  call->mutable_shape()->set_element_type(11);
  for (int i = 0; i < 10000; ++i) call->add_operand_ids(2);
  EXPECT_EQ(ImportError(proto.SerializeAsString()),
            "in 'main': 'many': custom-call: the module's operands flatten to more than 16777216");
}

TEST(ExportHlo, WritesWhatPluginsWant) {
  const Module module = FromText(kSum);
  hlo::HloModuleProto proto;
  ASSERT_TRUE(proto.ParseFromString(ExportHlo(module)));
  EXPECT_EQ(proto.entry_computation_id(), 2);
  EXPECT_EQ(proto.host_program_shape().parameters(0).layout().minor_to_major_size(), 1);
  EXPECT_EQ(proto.host_program_shape().result().element_type(), 13);
  EXPECT_EQ(proto.host_program_shape().parameter_names(0), "p");
  EXPECT_EQ(AllReduce(proto).replica_groups_size(), 0);
  EXPECT_EQ(AllReduce(proto).collective_device_list().replica_groups_size(), 2);
}

TEST(ExportHlo, InstructionNamesAreUniqueInTheModule) {
  ModuleBuilder builder("m");
  ComputationBuilder callee = builder.AddComputation("callee");
  const Value y = callee.Parameter({ElementType::kF32, {4}}, "x");
  callee.SetResults({callee.Unary(Opcode::kNegate, y)});
  ComputationBuilder main = builder.Entry();
  const Value x = main.Parameter({ElementType::kF32, {4}}, "x");
  const Value call =
      main.Append({.opcode = Opcode::kCall, .operands = {x}, .called = {builder.id(callee)}});
  main.SetResults({main.Unary(Opcode::kNegate, call)});
  const Module module = *std::move(builder).Finish();
  EXPECT_EQ(HloText(module), R"(HloModule m

%callee (x: f32[4]) -> f32[4] {
  %x = f32[4] parameter(0), metadata={op_name="x"}
  ROOT %negate = f32[4] negate(%x)
}

ENTRY %main (x.1: f32[4]) -> (f32[4]) {
  %x.1 = f32[4] parameter(0), metadata={op_name="x"}
  %call = f32[4] call(%x.1), to_apply=%callee
  %negate.1 = f32[4] negate(%call)
  ROOT %tuple = (f32[4]) tuple(%negate.1)
}
)");
}

// While passes one tuple, call a list: a computation that both call is written twice.
TEST(ExportHlo, ComputationsAreWrittenOncePerSignature) {
  const Module module = FromText(R"(HloModule m
body {
  t = (s32[]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  ROOT r = (s32[]) tuple(next)
}
condition {
  t = (s32[]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  limit = s32[] constant(9)
  ROOT less = pred[] compare(i, limit), direction=LT
}
ENTRY main {
  p = s32[] parameter(0)
  t = (s32[]) tuple(p)
  c = (s32[]) call(t), to_apply=body
  ROOT w = (s32[]) while(c), condition=condition, body=body
})");
  const Module again = Import(ExportHlo(module));
  EXPECT_EQ(module.computations.size(), 3);
  EXPECT_EQ(again.computations.size(), 4);
  EXPECT_EQ(ModuleHash(module), ModuleHash(again));
  EXPECT_EQ(Difference(again, FromText(HloText(module))), "");
}

}  // namespace
}  // namespace minka
