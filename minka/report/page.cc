#include "minka/report/page.h"

#include <string_view>

#include "fmt/format.h"
#include "minka/ir/module.h"
#include "minka/plan/plan_json.h"
#include "minka/report/page/assets.h"
#include "nlohmann/json.hpp"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

Json JsonOf(const std::vector<PageFact>& facts) {
  Json rows = Json::array();
  for (const PageFact& fact : facts) rows.push_back({fact.name, fact.value});
  return rows;
}

Json JsonOf(const PageMesh& mesh) {
  Json axes = Json::array();
  for (int axis = 0; axis < mesh.mesh.num_axes(); ++axis) {
    axes.push_back({{"name", mesh.mesh.axis(axis).name}, {"size", mesh.mesh.size(axis)}});
  }
  return {{"axes", std::move(axes)},
          {"devices", mesh.devices},
          {"device", mesh.device},
          {"device_memory", mesh.device_memory_bytes ? Json(*mesh.device_memory_bytes) : Json()}};
}

Json JsonOf(const TensorOnMesh& tensor, const Mesh& mesh) {
  Json labels = Json::object();
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    labels[mesh.axis(axis).name] = tensor.labels[axis];
  }
  Json row = {{"kind", TensorKindName(tensor.kind)},
              {"name", tensor.path.empty() ? tensor.name : tensor.path},
              {"type", TypeName(tensor.shape.type)},
              {"shape", tensor.shape.dims},
              {"sharding", ToString(tensor.sharding, mesh)},
              {"labels", std::move(labels)},
              {"bytes", tensor.bytes_per_device}};
  if (tensor.kind == TensorKind::kActivation) {
    row["phase"] = kPhaseNames[static_cast<int>(tensor.phase)];
    row["kept"] = tensor.kept;
  }
  return row;
}

Json JsonOf(const PageStage& stage, const PageMesh& mesh) {
  Json tensors = Json::array();
  for (const TensorOnMesh& tensor : stage.tensors) tensors.push_back(JsonOf(tensor, mesh.mesh));
  return {{"mesh", stage.mesh_number},
          {"layers", stage.layers},
          {"facts", JsonOf(stage.facts)},
          {"tensors", std::move(tensors)}};
}

Json JsonOf(const std::vector<PageRow>& rows) {
  Json out = Json::array();
  for (const PageRow& row : rows) {
    Json events = Json::array();
    for (const TracedEvent& event : row.events) {
      events.push_back({event.name, event.category, event.begin_us, event.end_us});
    }
    out.push_back({{"name", row.name}, {"events", std::move(events)}});
  }
  return out;
}

Json JsonOf(const std::vector<PageMemory>& moments) {
  Json out = Json::array();
  for (const auto& [name, begin_us, end_us, held] : moments) {
    out.push_back({{"name", name},
                   {"begin", begin_us},
                   {"end", end_us},
                   {"given", held.given},
                   {"made", held.made},
                   {"received", held.received},
                   {"temporary", held.temporary}});
  }
  return out;
}

Json JsonOf(const PageContents& contents) {
  Json meshes = Json::array(), stages = Json::array(), memory = Json::array();
  for (const PageMesh& mesh : contents.meshes) meshes.push_back(JsonOf(mesh));
  for (const PageStage& stage : contents.stages) {
    stages.push_back(JsonOf(stage, contents.meshes[stage.mesh_number]));
  }
  for (const auto& of_mesh : contents.memory) memory.push_back(JsonOf(of_mesh));
  return {{"title", contents.title},
          {"facts", JsonOf(contents.facts)},
          {"search", JsonOf(contents.search)},
          {"meshes", std::move(meshes)},
          {"stages", std::move(stages)},
          {"predicted", JsonOf(contents.predicted)},
          {"measured", JsonOf(contents.measured)},
          {"memory", std::move(memory)},
          {"notes", contents.notes}};
}

// As the text of a script element, which "</script" would end.
std::string EmbeddedJson(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string embedded;
  for (const char c : text) embedded += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return embedded;
}

}  // namespace

std::string ReportPage(const PageContents& contents) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>minka report</title>\n"
      "<style>\n{}</style>\n</head>\n<body>\n<main id=\"report\"></main>\n"
      "<script type=\"application/json\" id=\"plan\">{}</script>\n"
      "<script>{}</script>\n<script>\n{}</script>\n</body>\n</html>\n",
      page::kStyle, EmbeddedJson(JsonOf(contents)), page::kD3, page::kScript);
}

}  // namespace minka
