// A plan as one HTML page that opens without a network: cluster and stages as a picture, the step
// as a timeline, memory over time, how every tensor lies, what the search did.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "minka/report/chrome_trace.h"
#include "minka/report/tensors_of_plan.h"
#include "minka/sharding/mesh.h"
#include "minka/simulator/mesh_memory.h"

namespace minka {

struct PageFact {
  std::string name, value;
};

struct PageMesh {
  Mesh mesh;
  std::vector<std::string> devices;  // their names, in the mesh's order: "host 0, device 3"
  std::string device;                // what they are called, where devices are of several kinds
  std::optional<int64_t> device_memory_bytes;  // what each has
};

struct PageStage {
  int mesh_number = 0;
  std::string layers;  // "0-3"
  std::vector<PageFact> facts;
  std::vector<TensorOnMesh> tensors;
};

// What a device of a mesh holds from one moment to another.
struct PageMemory {
  std::string name;  // of what runs
  double begin_us = 0, end_us = 0;
  HeldMemory held;
};

// A row of a timeline.
struct PageRow {
  std::string name;
  std::vector<TracedEvent> events;
};

struct PageContents {
  std::string title;
  std::vector<PageFact> facts, search;
  std::vector<PageMesh> meshes;
  std::vector<PageStage> stages;
  std::vector<PageRow> predicted, measured;     // microseconds from the step's begin
  std::vector<std::vector<PageMemory>> memory;  // by mesh; empty: not known over time
  std::vector<std::string> notes;
};

std::string ReportPage(const PageContents& contents);

}  // namespace minka
