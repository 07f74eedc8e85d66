#include "minka/tools/pipeline_flags.h"

#include <algorithm>
#include <string>
#include <utility>

#include "minka/base/file.h"
#include "minka/base/json.h"
#include "minka/base/status.h"
#include "minka/driver/stages_file.h"
#include "minka/plan/pipeline_plan.h"
#include "minka/schedule/generate.h"
#include "minka/tools/quantities.h"

namespace minka {
namespace {

// "marked", their number, or what they begin with: "*/h_2/*,*/h_4/*".
absl::Status ReadLayers(const std::string& text, PipelineOptions& options) {
  if (text == "marked") return absl::OkStatus();
  int num_layers = 0;
  if (CLI::detail::lexical_cast(text, num_layers)) {
    if (num_layers < 1) {
      return InvalidArgument(
          "--pipeline-layers {} is neither marked, nor a number of layers, nor a list of what they "
          "begin with",
          text);
    }
    options.layers = AutoLayers{num_layers};
    return absl::OkStatus();
  }
  ManualLayers layers{.starts = SplitAtCommas(text)};
  if (std::ranges::find(layers.starts, "") != layers.starts.end()) {
    return InvalidArgument("--pipeline-layers {}: a name between two commas is empty", text);
  }
  options.layers = std::move(layers);
  return absl::OkStatus();
}

bool IsStagesFile(const std::string& text) { return text.ends_with(".json"); }

// "3", or the number of layers of each: "4,4,2", or a file, or what stands in it.
absl::Status ReadStages(const std::string& text, const SearchLimits& limits,
                        PipelineOptions& options) {
  if (text == "auto") return absl::OkStatus();
  if (IsStagesFile(text) || text.starts_with('{')) {
    std::string json = text;
    if (IsStagesFile(text)) {
      ASSIGN_OR_RETURN(json, ReadFile(text));
    }
    absl::StatusOr<PipelineOptions> read = WithStages(std::move(options), json, limits);
    if (!read.ok()) return WithContext(read.status(), "--stages " + text);
    options = *std::move(read);
    return absl::OkStatus();
  }
  std::vector<int> numbers;
  for (const std::string& item : SplitAtCommas(text)) {
    int number = 0;
    if (!CLI::detail::lexical_cast(item, number) || number < 1) {
      return InvalidArgument(
          "--stages {} is neither auto, nor a number of stages, nor the number of layers of each, "
          "such as 4,4,2, nor a file FILE.json",
          text);
    }
    numbers.push_back(number);
  }
  if (numbers.size() == 1) {
    options.num_stages = numbers[0];
    return absl::OkStatus();
  }
  for (size_t stage = 0; stage < numbers.size(); ++stage) {
    options.stage_of_layer.insert(options.stage_of_layer.end(), numbers[stage],
                                  static_cast<int>(stage));
  }
  return absl::OkStatus();
}

// "1x2,1x4": hosts times devices per host.
absl::Status ReadSubmeshes(std::string_view flag, const std::string& text,
                           std::vector<int>& submeshes) {
  if (text.empty()) return absl::OkStatus();
  for (const std::string& item : SplitAtCommas(text)) {
    const absl::StatusOr<int> num_devices = ParseSubmesh(item);
    if (!num_devices.ok()) {
      return WithContext(num_devices.status(), fmt::format("{} {}", flag, text));
    }
    submeshes.push_back(*num_devices);
  }
  return absl::OkStatus();
}

absl::Status ReadShares(const std::string& text, PipelineOptions& options) {
  if (text.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(options.shares, ParseNumbers("--stage-shares", text));
  if (!GivesMeshes(options) && options.stage_of_layer.empty()) return absl::OkStatus();
  return InvalidArgument(
      "--stage-shares says what is searched: drop it, or the flags that give the stages");
}

// --dp, --op, --pp: as many equal meshes, of which one degree may follow from the devices.
absl::Status ReadDegrees(const PlanningFlags& flags, PipelineOptions& options) {
  if (!flags.dp && !flags.op && !flags.pp) return absl::OkStatus();
  if (options.num_stages > 0) {
    return InvalidArgument("--pp says how many stages there are; drop --stages");
  }
  const int num_given = flags.dp.has_value() + flags.op.has_value() + flags.pp.has_value();
  const int product = flags.dp.value_or(1) * flags.op.value_or(1) * flags.pp.value_or(1);
  const int num_devices = flags.num_devices.value_or(num_given == 3 ? product : 0);
  const int rest = product > 0 ? num_devices / product : 0;
  const bool fits = rest > 0 && rest * product == num_devices && (rest == 1 || num_given == 2);
  if (!fits) {
    return InvalidArgument(
        "--dp {} --op {} --pp {} on {} devices: the product of the three must be the number of "
        "devices "
        "(--num-devices); one of them may be left out",
        flags.dp.value_or(0), flags.op.value_or(0), flags.pp.value_or(0), num_devices);
  }
  const int stages = flags.pp.value_or(rest);
  if (!options.stage_of_layer.empty() && options.stage_of_layer.back() + 1 != stages) {
    return InvalidArgument("--stages lists {} stages, --pp says {}",
                           options.stage_of_layer.back() + 1, stages);
  }
  options.meshes.assign(
      stages, Mesh({{"data", flags.dp.value_or(rest)}, {"operator", flags.op.value_or(rest)}}));
  return absl::OkStatus();
}

// The meshes are said by one flag.
absl::Status CheckMeshesOnce(const PlanningFlags& flags, const PipelineOptions& from_stages) {
  const bool says_stages = !from_stages.meshes.empty() || !from_stages.submeshes.empty();
  const bool says_degrees = flags.dp || flags.op || flags.pp;
  const int num_said =
      !flags.meshes.empty() + !flags.submeshes.empty() + says_stages + says_degrees;
  if (num_said < 2) return absl::OkStatus();
  if (says_degrees) {
    return InvalidArgument(
        "--dp, --op and --pp say stages and meshes; drop --mesh, --submeshes and --stages");
  }
  if (says_stages) {
    return InvalidArgument(
        "the file of --stages says on what the stages run; drop --mesh and --submeshes");
  }
  return InvalidArgument("--mesh and --submeshes both say on what the stages run; drop one");
}

std::string Schedules() {
  std::string text =
      fmt::format("{} (1f1b, eager-1f1b or zero-bubble-h1, whichever is predicted to be fastest)",
                  kChooseSchedule);
  for (const ScheduleKind& kind : ScheduleKinds()) {
    text += fmt::format(", {} ({})", kind.name, kind.summary);
  }
  return text;
}

// What stands in a file, so that the plan records it.
std::string StagesText(const std::string& text) {
  if (!IsStagesFile(text)) return text;
  const absl::StatusOr<std::string> contents = ReadFile(text);
  if (!contents.ok()) return text;  // whoever reads the flag says why
  const auto json = ParseJson(*contents);
  return json.ok() && json->is_object() ? json->dump() : text;
}

}  // namespace

void AddPipelineFlags(CLI::App& command, PlanningFlags& flags, const char* group) {
  command
      .add_option(
          "--pipeline-layers", flags.layers,
          "For pipeline: marked (layers between the boundaries that the step marks or that "
          "are found in it), into how many layers of about equal compute it is parted "
          "instead, or what each but the first begins with, such as '*/h_2/*,*/h_4/*' (globs "
          "on names of operations and parameters) or 0,2,4 (layers between boundaries). "
          "Default without boundaries: 4 for each stage that --stages asks for")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--stages", flags.stages,
                  "For pipeline: auto, a number of stages, the number of layers of each, such as "
                  "4,4,2, or a file FILE.json with layers, mesh and options of each")
      ->transform(StagesText)
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--submeshes", flags.submeshes,
          "For pipeline: hosts x devices per host of each mesh, such as 1x2,1x4. Default: "
          "equal parts of the devices, or powers of two where these are predicted to be faster")
      ->group(group);
  command
      .add_option("--submesh-choices", flags.submesh_choices,
                  "For pipeline, where meshes are searched: each has one of these hosts x devices "
                  "per host, such as 1x2,1x4,2x4. Default: powers of two and equal parts")
      ->group(group);
  command
      .add_option("--stage-shares", flags.stage_shares,
                  "For pipeline on hosts of several kinds: how the work of the layers is shared "
                  "among them, in the order in which --cluster names them, such as 3,1. Default: "
                  "whatever is fastest")
      ->group(group);
  command.add_option("--schedule", flags.schedule, "For pipeline: " + Schedules())
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--dp", flags.dp,
                  "For pipeline: equal meshes of so many devices for data (with --op and --pp; one "
                  "may follow from --num-devices)")
      ->group(group);
  command.add_option("--op", flags.op, "For pipeline: times so many for operators")->group(group);
  command.add_option("--pp", flags.pp, "For pipeline: so many stages")->group(group);
}

bool AsksForPipeline(const PlanningFlags& flags) {
  const PlanningFlags defaults;
  return flags.layers != defaults.layers || flags.stages != defaults.stages ||
         !flags.submeshes.empty() || !flags.submesh_choices.empty() ||
         !flags.stage_shares.empty() || flags.schedule != defaults.schedule || flags.dp ||
         flags.op || flags.pp;
}

absl::StatusOr<std::optional<PipelineOptions>> PipelineOf(const PlanningFlags& flags,
                                                          const std::vector<Mesh>& meshes,
                                                          const SearchLimits& limits) {
  if (flags.method != kPipelineMethod) {
    if (!AsksForPipeline(flags)) return std::nullopt;
    return InvalidArgument(
        "--pipeline-layers, --stages, --submeshes, --submesh-choices, --stage-shares, --schedule, "
        "--dp, --op and --pp belong to --method pipeline, not to {}",
        flags.method);
  }
  PipelineOptions options{.schedule = flags.schedule};
  RETURN_IF_ERROR(ReadLayers(flags.layers, options));
  RETURN_IF_ERROR(ReadStages(flags.stages, limits, options));
  RETURN_IF_ERROR(CheckMeshesOnce(flags, options));
  if (!meshes.empty()) options.meshes = meshes;
  RETURN_IF_ERROR(ReadSubmeshes("--submeshes", flags.submeshes, options.submeshes));
  RETURN_IF_ERROR(ReadDegrees(flags, options));
  RETURN_IF_ERROR(
      ReadSubmeshes("--submesh-choices", flags.submesh_choices, options.submesh_choices));
  if (!options.submesh_choices.empty() && GivesMeshes(options)) {
    return InvalidArgument(
        "--submesh-choices says what meshes are searched; these are given: drop it, or the flags "
        "that give them");
  }
  RETURN_IF_ERROR(ReadShares(flags.stage_shares, options));
  return options;
}

}  // namespace minka
