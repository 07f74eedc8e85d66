#include "minka/runtime/worker/program_proto.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/runtime/worker/testing/small_program.h"

namespace minka {
namespace {

worker::MeshProgram SmallProto() {
  return MeshProgramToProto(SmallMeshProgram(), {{4, 1}, {7, 2}});
}

std::string ErrorOf(const worker::MeshProgram& proto) {
  return Message(MeshProgramFromProto(proto, SmallSession()).status());
}

TEST(ProgramProto, WhatIsSentArrives) {
  const auto received = MeshProgramFromProto(SmallProto(), SmallSession());
  ASSERT_TRUE(received.ok()) << Message(received.status());
  EXPECT_EQ(received->peers, (std::map<int, int>{{4, 1}, {7, 2}}));
  EXPECT_EQ(received->program.numbers, (std::vector<int>{5}));
  EXPECT_EQ(InstructionsText(received->program), InstructionsText(SmallMeshProgram()));
  EXPECT_EQ(InstructionsText(received->program),
            "receive %0 x by channel 4\n"
            "run stage 1 forward of micro-batch 0: (%0 x, %1 w, %5 number) -> (%2 y)\n"
            "run stage 1 apply 2: (%2 y, %1 w) -> (%3 new_w)\n"
            "send %3 new_w by channel 7\n"
            "free %0 x, %2 y\n");
  EXPECT_EQ(ToString(received->program.programs[0].signature.parameters[0]), "f32[4,4]");
}

TEST(ProgramProto, UsesSayWhatAStepBringsAndLeaves) {
  const auto received = MeshProgramFromProto(SmallProto(), SmallSession());
  ASSERT_TRUE(received.ok()) << Message(received.status());
  std::string given, needed, left;
  for (size_t slot = 0; slot < received->uses.size(); ++slot) {
    const std::string& name = received->program.slots[slot].name;
    if (received->uses[slot].is_given) given += name + " ";
    if (received->uses[slot].is_needed) needed += name + " ";
    if (received->uses[slot].is_left) left += name + " ";
  }
  EXPECT_EQ(given, "w spare ");
  EXPECT_EQ(needed, "w ");
  // new_w has taken the memory of w.
  EXPECT_EQ(left, "new_w spare number ");
}

worker::Tile& TileAt(worker::MeshProgram& proto, int list, int tile) {
  return *proto.mutable_tile_lists(list)->mutable_messages(0)->mutable_tiles(tile);
}

// A mesh that sends to itself waits for ever unless it sends first.
TEST(ProgramProto, ChannelsBackToTheWorkerAreSentBeforeTheyAreReceived) {
  worker::MeshProgram proto = MeshProgramToProto(SmallMeshProgram(), {{4, 0}});
  proto.mutable_instructions(3)->mutable_send()->set_channel(4);
  EXPECT_EQ(ErrorOf(proto),
            "mesh program: instruction 0: waits for channel 4, which this mesh sends later");
  proto.mutable_instructions(0)->mutable_receive()->set_slot(4);
  proto.mutable_instructions()->SwapElements(0, 3);
  proto.mutable_instructions(0)->mutable_send()->set_slot(0);
  proto.mutable_instructions(0)->mutable_send()->set_tiles(0);
  proto.mutable_instructions(3)->mutable_receive()->set_tiles(1);
  worker::TileList& received_tiles = *proto.mutable_tile_lists(1);
  TileAt(proto, 1, 0).add_devices(0);
  EXPECT_EQ(ErrorOf(proto),
            "mesh program: instruction 3: channel 4 brings the boxes of tile list 0, expected are "
            "those of 1");
  received_tiles = proto.tile_lists(0);
  TileAt(proto, 1, 0).add_devices(1);
  TileAt(proto, 1, 1).add_devices(0);
  const auto received = MeshProgramFromProto(proto, SmallSession());
  ASSERT_TRUE(received.ok()) << Message(received.status());
  EXPECT_TRUE(received->uses[0].is_needed);
  proto.mutable_slots(4)->set_shape("s32[4,4]");
  EXPECT_EQ(
      ErrorOf(proto),
      "mesh program: instruction 3: slot 4 (spare) is s32[4,4], but channel 4 brings f32[4,4]");
}

struct Broken {
  std::string message;  // behind "mesh program: "
  std::function<void(worker::MeshProgram&)> change;
};

worker::Run& RunAt(worker::MeshProgram& proto, int number) {
  return *proto.mutable_instructions(number)->mutable_run();
}

Module SumInPlace() {
  return ParseHloText(R"(HloModule m, input_output_alias={ {}: (1, {}, may-alias) }

ENTRY main {
  a = f32[4,4] parameter(0)
  b = f32[4,4] parameter(1)
  ROOT sum = f32[4,4] add(a, b)
}
)")
      .value();
}

Module NextInPlace() {
  return ParseHloText(R"(HloModule m, input_output_alias={ {}: (0, {}, may-alias) }

ENTRY main {
  number = s32[] parameter(0)
  one = s32[] constant(1)
  ROOT next = s32[] add(number, one)
}
)")
      .value();
}

Module Twice() {
  return ParseHloText(R"(HloModule m

ENTRY main {
  a = f32[4,4] parameter(0)
  ROOT results = (f32[4,4], f32[4,4]) tuple(a, a)
}
)")
      .value();
}

// A module of one operation.
std::string ModuleWith(const std::string& operation) {
  return ExportHlo(ParseHloText(fmt::format(R"(HloModule m

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}}

ENTRY main {{
  x = f32[2,4] parameter(0)
  ROOT r = f32[2,4] {}
}}
)",
                                            operation))
                       .value());
}

std::vector<Broken> BrokenMeshesAndPrograms() {
  return {
      {"mesh axis 'x=0' needs a positive size, for example data=2",
       [](auto& proto) { proto.set_mesh("x=0"); }},
      {"the mesh x=8 has 8 devices, the worker 2", [](auto& proto) { proto.set_mesh("x=8"); }},
      {"program 1: 'stage 1 applied' names no program; the form is 'stage 1 backward'",
       [](auto& proto) { proto.mutable_programs(1)->set_name("stage 1 applied"); }},
      {"program 1: 'stage 01 apply' names no program; the form is 'stage 1 backward'",
       [](auto& proto) { proto.mutable_programs(1)->set_name("stage 01 apply"); }},
      {"program 1: 'stage 3000000000 apply' names no program; the form is 'stage 1 backward'",
       [](auto& proto) { proto.mutable_programs(1)->set_name("stage 3000000000 apply"); }},
      {"program 0: stage 1 forward: all-reduce 'r' names replica 2 of 2",
       [](auto& proto) {
         proto.mutable_programs(0)->set_module(
             ModuleWith("all-reduce(x), replica_groups={{0,2}}, to_apply=add"));
       }},
      {"program 0: stage 1 forward: collective-permute 'r' names replica -1 of 2",
       [](auto& proto) {
         proto.mutable_programs(0)->set_module(
             ModuleWith("collective-permute(x), source_target_pairs={{0,-1}}"));
       }},
      {"program 1 (stage 1 apply 2) is never run",
       [](auto& proto) { proto.mutable_instructions()->DeleteSubrange(2, 1); }},
  };
}

std::vector<Broken> BrokenSlots() {
  return {
      {"slot 1 (w): shape 'f32[4': line 1, column 6: ',' expected",
       [](auto& proto) { proto.mutable_slots(1)->set_shape("f32[4"); }},
      {"slot 1 (w): shape 'f32[4,4]{0,1}' is not that of an array, like f32[64,128]",
       [](auto& proto) { proto.mutable_slots(1)->set_shape("f32[4,4]{0,1}"); }},
      {"slot 1 (w): shape 'token[]' is not that of an array, like f32[64,128]",
       [](auto& proto) { proto.mutable_slots(1)->set_shape("token[]"); }},
      {"slot 1 (w): shape '(f32[4])' is not that of an array, like f32[64,128]",
       [](auto& proto) { proto.mutable_slots(1)->set_shape("(f32[4])"); }},
      {"slot 0 (x): sharding '[y,-]': the mesh x=2 has no axis 'y'",
       [](auto& proto) { proto.mutable_slots(0)->set_sharding("[y,-]"); }},
      {"slot 0 (x): the sharding has 1 dimensions, but f32[4,4] has 2",
       [](auto& proto) { proto.mutable_slots(0)->set_sharding("[x]"); }},
      {"slot 0 (x): dimension 0 of f32[3,4] is not divided by its axes x of the mesh x=2",
       [](auto& proto) { proto.mutable_slots(0)->set_shape("f32[3,4]"); }},
      {"numbers: slot 6 of 6 does not exist", [](auto& proto) { proto.add_numbers(6); }},
      {"slot 1 (w) holds a number, but is f32[4,4] [-,-], not s32[] []",
       [](auto& proto) { proto.add_numbers(1); }},
      {"slot 5 (number) holds two numbers", [](auto& proto) { proto.add_numbers(5); }},
  };
}

std::vector<Broken> BrokenChannels() {
  return {
      {"channel 4 leads to peer 3 of 3",
       [](auto& proto) { proto.mutable_channels(0)->set_peer(3); }},
      {"channel 4 leads to peer -1 of 3",
       [](auto& proto) { proto.mutable_channels(0)->set_peer(-1); }},
      {"channel -4 is negative or has more than 24 bits",
       [](auto& proto) { proto.mutable_channels(0)->set_number(-4); }},
      {"channel 16777216 is negative or has more than 24 bits",
       [](auto& proto) { proto.mutable_channels(0)->set_number(1 << 24); }},
      {"channel 4 is listed twice", [](auto& proto) { proto.mutable_channels(1)->set_number(4); }},
      {"channel 9 is never used",
       [](auto& proto) {
         proto.add_channels()->set_number(9);
         proto.mutable_channels(2)->set_peer(1);
       }},
      {"channel 4 leads to peer 0, this one is 0, and it is used in one direction only",
       [](auto& proto) { proto.mutable_channels(0)->set_peer(0); }},
      {"channel 4 leads to peer 1, this one is 0, and it is sent and received here",
       [](auto& proto) {
         proto.mutable_channels()->RemoveLast();
         proto.mutable_instructions(3)->mutable_send()->set_channel(4);
       }},
      {"instruction 3: send: channel 8 is not listed",
       [](auto& proto) { proto.mutable_instructions(3)->mutable_send()->set_channel(8); }},
      {"instruction 5: send: channel 7 is used twice",
       [](auto& proto) { *proto.add_instructions() = proto.instructions(3); }},
      {"instruction 0: receive: slot 0 (x) holds sums that are still owed",
       [](auto& proto) { proto.mutable_slots(0)->set_sharding("[-,-]{partial: x}"); }},
  };
}

std::vector<Broken> BrokenTiles() {
  return {
      {"tile list 0: no messages", [](auto& proto) { proto.mutable_tile_lists(0)->Clear(); }},
      {"tile list 0: a message without tiles",
       [](auto& proto) { proto.mutable_tile_lists(0)->add_messages(); }},
      {"tile list 0: a box with 2 beginnings and 3 ends",
       [](auto& proto) { TileAt(proto, 0, 1).add_end(1); }},
      {"tile list 0: the box [-1:4,0:4] is none",
       [](auto& proto) { TileAt(proto, 0, 1).set_begin(0, -1); }},
      {"tile list 0: the box [5:4,0:4] is none",
       [](auto& proto) { TileAt(proto, 0, 1).set_begin(0, 5); }},
      {"tile list 0: the box [2:4,0:4] has no device",
       [](auto& proto) { TileAt(proto, 0, 1).clear_devices(); }},
      {"tile list 0: the box [2:4,0:4] has devices that are none, or the same",
       [](auto& proto) { TileAt(proto, 0, 1).add_devices(1); }},
      {"tile list 2 is never used",
       [](auto& proto) { *proto.add_tile_lists() = proto.tile_lists(0); }},
      {"instruction 3: send: tile list 2 of 2 does not exist",
       [](auto& proto) { proto.mutable_instructions(3)->mutable_send()->set_tiles(2); }},
      {"instruction 3: send: the box [0:4,0:4] has 2 senders",
       [](auto& proto) { TileAt(proto, 1, 0).add_devices(0); }},
      {"instruction 3: send: the box [0:4,0:4] is for device 2 of 2",
       [](auto& proto) { TileAt(proto, 1, 0).set_devices(0, 2); }},
      {"instruction 3: send: the box [0:4,0:5] is not in [0:4,0:4], which device 1 holds",
       [](auto& proto) { TileAt(proto, 1, 0).set_end(1, 5); }},
      {"instruction 3: send: sends more than f32[4,4] has",
       [](auto& proto) {
         *proto.mutable_tile_lists(1)->add_messages() = proto.tile_lists(1).messages(0);
       }},
      {"instruction 0: receive: the box [2:4] is none of f32[4,4]",
       [](auto& proto) {
         TileAt(proto, 0, 1).mutable_begin()->RemoveLast();
         TileAt(proto, 0, 1).mutable_end()->RemoveLast();
       }},
      {"instruction 0: receive: the box [0:2,0:4] is not in [2:4,0:4], which device 1 holds",
       [](auto& proto) { TileAt(proto, 0, 0).set_devices(0, 1); }},
      {"instruction 0: receive: device 0 gets elements of [0:2,0:4] and [1:2,0:4] twice",
       [](auto& proto) {
         worker::Tile& tile = *proto.mutable_tile_lists(0)->mutable_messages(0)->add_tiles();
         tile = TileAt(proto, 0, 0);
         tile.set_begin(0, 1);
       }},
      {"instruction 0: receive: device 1 gets 4 elements of the 8 of [2:4,0:4]",
       [](auto& proto) { TileAt(proto, 0, 1).set_begin(0, 3); }},
  };
}

std::vector<Broken> BrokenRuns() {
  return {
      {"instruction 5: it is none of run, send, receive and free",
       [](auto& proto) { proto.add_instructions(); }},
      {"instruction 1: run: program 2 of 2 does not exist",
       [](auto& proto) { RunAt(proto, 1).set_program(2); }},
      {"instruction 1: run: micro-batch -2 does not exist",
       [](auto& proto) { RunAt(proto, 1).set_micro_batch(-2); }},
      {"instruction 1: run: program 0 (stage 1 forward): has 3 arguments, given are 4 slots",
       [](auto& proto) { RunAt(proto, 1).add_arguments(0); }},
      {"instruction 1: run: program 0 (stage 1 forward): has 1 results, given are 0 slots",
       [](auto& proto) { RunAt(proto, 1).clear_results(); }},
      {"instruction 1: run: program 0 (stage 1 forward): argument 1: slot -1 of 6 does not exist",
       [](auto& proto) { RunAt(proto, 1).set_arguments(1, -1); }},
      {"instruction 1: run: program 0 (stage 1 forward): argument 0 is f32[2,4], but slot 1 (w) "
       "holds f32[4,4] on a device",
       [](auto& proto) { RunAt(proto, 1).set_arguments(0, 1); }},
      {"instruction 2: run: program 0 (stage 1 forward): argument 0 is f32[4,4] [x,-] here, "
       "f32[2,4] [-,-] in an earlier run",
       [](auto& proto) {
         proto.mutable_slots()->Add()->CopyFrom(proto.slots(0));
         proto.mutable_slots(6)->set_shape("f32[2,4]");
         proto.mutable_slots(6)->set_sharding("[-,-]");
         *proto.add_instructions() = proto.instructions(1);
         RunAt(proto, 1).set_arguments(0, 6);
         proto.mutable_instructions()->SwapElements(2, 5);
       }},
      {"instruction 0: reads slot 0 (x), which is empty",
       [](auto& proto) { proto.mutable_instructions()->SwapElements(0, 1); }},
      {"instruction 5: fills slot 2 (y), which is full",
       [](auto& proto) {
         proto.mutable_instructions(4)->clear_free();
         proto.mutable_instructions(4)->mutable_free();
         *proto.add_instructions() = proto.instructions(1);
         RunAt(proto, 5).set_arguments(1, 3);
       }},
      {"instruction 4: reads slot 1 (w), whose memory a result has taken",
       [](auto& proto) {
         *proto.mutable_instructions(4) = proto.instructions(1);
         RunAt(proto, 4).set_results(0, 4);
         proto.mutable_slots(4)->set_sharding("[x,-]");
       }},
      {"instruction 2: result 0 takes the memory of slot 1 (w), which is two arguments",
       [](auto& proto) {
         proto.mutable_programs(1)->set_module(ExportHlo(SumInPlace()));
         RunAt(proto, 2).set_arguments(0, 1);
       }},
      {"instruction 2: result 0 takes the memory of slot 5 (number), a number",
       [](auto& proto) {
         proto.mutable_programs(1)->set_module(ExportHlo(NextInPlace()));
         RunAt(proto, 2).clear_arguments();
         RunAt(proto, 2).add_arguments(5);
         proto.mutable_slots(3)->set_shape("s32[]");
         proto.mutable_slots(3)->set_sharding("[]");
         TileAt(proto, 1, 0).clear_begin();
         TileAt(proto, 1, 0).clear_end();
       }},
      {"instruction 2: run: program 1 (stage 1 apply 2): two results go into slot 3 (new_w)",
       [](auto& proto) {
         proto.mutable_programs(1)->set_module(ExportHlo(Twice()));
         RunAt(proto, 2).clear_arguments();
         RunAt(proto, 2).add_arguments(1);
         RunAt(proto, 2).add_results(3);
       }},
      {"instruction 5: frees slot 0 (x), which is empty",
       [](auto& proto) { proto.add_instructions()->mutable_free()->add_slots(0); }},
      {"instruction 5: frees slot 5 (number), a number",
       [](auto& proto) { proto.add_instructions()->mutable_free()->add_slots(5); }},
      {"instruction 5: free: slot 6 of 6 does not exist",
       [](auto& proto) { proto.add_instructions()->mutable_free()->add_slots(6); }},
  };
}

void ExpectRefused(const std::vector<Broken>& cases) {
  for (const Broken& broken : cases) {
    worker::MeshProgram proto = SmallProto();
    broken.change(proto);
    EXPECT_EQ(ErrorOf(proto), "mesh program: " + broken.message);
  }
}

// One of them is a mesh of a real pipeline.
TEST(ProgramProto, SeedsOfTheFuzzerAreAccepted) {
  for (const std::string name : {"small", "mlp_1f1b"}) {
    worker::MeshProgram proto;
    ASSERT_TRUE(proto.ParseFromString(
        ReadFile(MINKA_TESTDATA "/program_proto_fuzzer_corpus/" + name).value()));
    EXPECT_EQ(ErrorOf(proto), "");
  }
}

TEST(ProgramProto, MeshesAndProgramsAreChecked) { ExpectRefused(BrokenMeshesAndPrograms()); }
TEST(ProgramProto, SlotsAreChecked) { ExpectRefused(BrokenSlots()); }
TEST(ProgramProto, ChannelsAreChecked) { ExpectRefused(BrokenChannels()); }
TEST(ProgramProto, TilesAreChecked) { ExpectRefused(BrokenTiles()); }
TEST(ProgramProto, InstructionsAreChecked) { ExpectRefused(BrokenRuns()); }

}  // namespace
}  // namespace minka
