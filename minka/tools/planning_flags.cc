#include "minka/tools/planning_flags.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <numeric>

#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/driver/pipeline.h"
#include "minka/plan/pipeline_plan.h"
#include "minka/report/comparison.h"
#include "minka/tools/pipeline_flags.h"
#include "minka/tools/quantities.h"

namespace minka {
namespace {

constexpr int kMaxLocalDevices = 64;
constexpr const char* kGroup = "Planning";

// What was joined by spaces; items end in `end`, which those with spaces inside are told by.
std::vector<std::string> SplitAfter(const std::string& text, const std::string& end) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin < text.size();) {
    const size_t found = text.find(end + " ", begin);
    const size_t size = found == std::string::npos ? text.size() : found + end.size();
    items.push_back(text.substr(begin, size - begin));
    begin = size + 1;
  }
  return items;
}

// That one mesh or, of a pipeline, all meshes need.
int64_t DevicesOf(const std::vector<Mesh>& meshes, const std::optional<PipelineOptions>& pipeline) {
  int64_t most = 0, all = 0;
  for (const Mesh& mesh : pipeline ? pipeline->meshes : meshes) {
    most = std::max(most, mesh.num_devices());
    all += mesh.num_devices();
  }
  if (!pipeline) return most;
  return std::accumulate(pipeline->submeshes.begin(), pipeline->submeshes.end(), all);
}

absl::StatusOr<Cluster> LocalCluster(const PlanningFlags& flags, const std::vector<Mesh>& meshes,
                                     const std::optional<PipelineOptions>& pipeline) {
  const int64_t needed = DevicesOf(meshes, pipeline);
  if (needed == 0 && !flags.num_devices) {
    return InvalidArgument(
        "what is the plan for? Give --mesh data=2,model=4, or --num-devices 8 to search its shape");
  }
  if (flags.num_devices && needed > *flags.num_devices) {
    return InvalidArgument("{} need {} devices, but --num-devices says {}",
                           pipeline ? "the meshes of the stages" : "the meshes", needed,
                           *flags.num_devices);
  }
  const int64_t num_devices = flags.num_devices ? *flags.num_devices : needed;
  if (num_devices < 1 || num_devices > kMaxLocalDevices) {
    return InvalidArgument(
        "{} local devices asked for; 1 to {} can be had (--cluster plans for others)", num_devices,
        kMaxLocalDevices);
  }
  const auto num = static_cast<int>(num_devices);
  return flags.cluster == kLocalCluster ? Cluster::Local(num) : Cluster::LocalCuda(num);
}

bool IsLocal(const PlanningFlags& flags) {
  return flags.cluster == kLocalCluster || flags.cluster == kLocalCudaCluster;
}

// Hosts of several kinds: stages lie on one each, and no profile is of several.
absl::Status CheckHosts(const PlanningFlags& flags, const PlanRequest& request) {
  if (request.num_kinds() == 1) return absl::OkStatus();
  if (!request.pipeline) {
    return InvalidArgument(
        "--cluster {} has hosts of {} kinds, and devices of a mesh are of one; --method pipeline "
        "plans stages on each",
        flags.cluster, request.num_kinds());
  }
  if (flags.cost_model != "roofline") {
    return InvalidArgument(
        "--cost-model {} knows one kind of hosts, --cluster {} has {}; roofline knows all",
        flags.cost_model, flags.cluster, request.num_kinds());
  }
  return absl::OkStatus();
}

absl::Status SetHosts(const PlanningFlags& flags, PlanRequest& request) {
  if (IsLocal(flags)) {
    ASSIGN_OR_RETURN(request.cluster, LocalCluster(flags, request.meshes, request.pipeline));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::vector<Cluster> kinds, Cluster::OfKinds(flags.cluster));
  request.cluster = std::move(kinds.front());
  request.other_hosts.assign(std::move_iterator(kinds.begin() + 1),
                             std::move_iterator(kinds.end()));
  if (flags.num_devices && *flags.num_devices != request.num_devices()) {
    return InvalidArgument(
        "--num-devices {} is not the {} devices of cluster {}; leave it out, or give --mesh",
        *flags.num_devices, request.num_devices(), flags.cluster);
  }
  return CheckHosts(flags, request);
}

// "auto" leaves it to the search.
absl::StatusOr<std::optional<RematChoice>> RematOf(const PlanningFlags& flags) {
  if (flags.remat == "auto") return std::nullopt;
  RematChoice choice;
  for (const std::string& name : SplitAtCommas(flags.remat)) {
    const absl::StatusOr<RematPolicy> policy = ParseRematPolicy(name);
    if (!policy.ok()) {
      return InvalidArgument("--remat {}: {}; auto leaves it to the search", flags.remat,
                             Message(policy.status()));
    }
    choice.push_back(*policy);
  }
  return choice;
}

absl::StatusOr<MicroBatchOptions> MicroBatchesOf(const PlanningFlags& flags) {
  MicroBatchOptions out{.per_micro_batch = flags.per_micro_batch, .narrow_sums = flags.narrow_sums};
  if (ChoosesMicroBatches(flags)) {
    if (flags.method != kPipelineMethod) return out;
    out.num_micro_batches = kChooseMicroBatches;
    return out;
  }
  const char* const end = flags.micro_batches.data() + flags.micro_batches.size();
  const auto [read_to, error] =
      std::from_chars(flags.micro_batches.data(), end, out.num_micro_batches);
  if (error != std::errc() || read_to != end || out.num_micro_batches < 1) {
    return InvalidArgument("--micro-batches {} is neither auto nor a number of 1 or more",
                           flags.micro_batches);
  }
  return out;
}

absl::StatusOr<CostModelChoice> CostModelOf(const PlanningFlags& flags) {
  CostModelChoice choice{.allow_replicated_dots = flags.allow_replicated_dots};
  const bool is_alpa = flags.cost_model == "alpa";
  if (!is_alpa && (!flags.alpha.empty() || !flags.beta.empty() || flags.allow_replicated_dots)) {
    return InvalidArgument(
        "--alpha, --beta and --allow-replicated-dots belong to --cost-model alpa, not to {}",
        flags.cost_model);
  }
  if (flags.cost_model == "roofline") return choice;
  if (flags.cost_model == "measured") {
    choice.kind = CostModelKind::kMeasured;
    return choice;
  }
  if (!is_alpa) {
    return InvalidArgument("--cost-model {} is unknown; there are roofline, measured and alpa",
                           flags.cost_model);
  }
  if (flags.alpha.empty() || flags.beta.empty()) {
    return InvalidArgument(
        "--cost-model alpa needs --alpha and --beta, one value per mesh axis: --alpha 1,1 --beta "
        "1,0.1");
  }
  choice.kind = CostModelKind::kAlpa;
  ASSIGN_OR_RETURN(choice.alpha, ParseNumbers("--alpha", flags.alpha));
  ASSIGN_OR_RETURN(choice.beta, ParseNumbers("--beta", flags.beta));
  return choice;
}

}  // namespace

void AddPlanningFlags(CLI::App& command, PlanningFlags& flags,
                      const std::string& memory_limit_help) {
  const char* const group = kGroup;
  command
      .add_option(
          "--mesh", flags.meshes,
          "Mesh as data=2,model=4 or 2x4 (axes x, y, z); several are compared, or are those "
          "of a pipeline's stages, in their order. Default: every shape of the devices")
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--num-devices", flags.num_devices,
                  "Search the mesh shapes of so many devices. Default: what --mesh or --cluster "
                  "says")
      ->group(group);
  command
      .add_option(
          "--cluster", flags.cluster,
          "local (this machine's cores as virtual devices), local-cuda (its GPUs), a preset "
          "with its number of hosts (p3.16xlarge:8), or a JSON file; hosts of several kinds for a "
          "pipeline, joined by commas (a100:1x4,v100:1x4)")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--method", flags.method,
                  "shard (everything is searched), data (the batch over all axes), zero2 (data, "
                  "optimizer state split), zero3 (weights split, too); several, joined by commas, "
                  "are compared. pipeline: layers as stages on meshes of their own, each by shard" +
                      std::string(flags.method == kAnyMethod
                                      ? ". auto: shard on one mesh, and pipeline, each within "
                                        "the limits of time and work; on this machine's "
                                        "cores, which stages would share, shard alone"
                                      : ""))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--micro-batches", flags.micro_batches,
                  "Run the batch in so many slices, one after the other, and accumulate gradients; "
                  "auto: for pipeline, and where --method says nothing, as many as are "
                  "predicted to be fastest, else one")
      ->capture_default_str()
      ->group(group);
  command
      .add_flag(
          "--per-micro-batch", flags.per_micro_batch,
          "Sums over the batch that operations on slices need (batch normalisation) are "
          "taken over each micro-batch; changes what the step computes, as does their number then")
      ->group(group);
  command
      .add_flag("--narrow-sums", flags.narrow_sums,
                "Gradients of micro-batches add up in the type that they are computed in, be it "
                "bf16 or f16, instead of f32: two bytes less for every weight, one rounding more "
                "for every micro-batch")
      ->group(group);
  command
      .add_option(
          "--remat", flags.remat,
          "What the backward pass computes again of each layer instead of keeping it: none, "
          "dots (all but results of dots and convolutions), all, or one of these per layer, "
          "joined by commas; auto: as the memory limit asks for")
      ->capture_default_str()
      ->group(group);
  AddPipelineFlags(command, flags, group);
  command
      .add_option("--memory-limit", flags.memory_limit,
                  "Bytes per device, such as 2GiB" + memory_limit_help)
      ->group(group);
  command
      .add_option("--pin", flags.pins,
                  "GLOB=SHARDING: parameters and results whose names match lie so, such as "
                  "'params/*/kernel=[-,model]'; where none does, operations. Repeatable")
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_flag("--no-all-gather", flags.limits.no_all_gather, "The plan may hold no all-gather")
      ->group(group);
  command
      .add_flag("--no-all-to-all", flags.limits.no_all_to_all, "The plan may hold no all-to-all")
      ->group(group);
  command
      .add_option("--batch-axis", flags.limits.batch_axis,
                  "Mesh axis over which the batch is split, and no other, everywhere")
      ->group(group);
  command
      .add_flag("--no-sequence-split", flags.limits.no_sequence_split,
                "Examples are not split along dimensions of their own, such as positions of a "
                "sequence or pixels")
      ->group(group);
  command
      .add_flag("--no-replicated-parameters", flags.limits.no_replicated_parameters,
                "All state is split over at least one axis that divides it")
      ->group(group);
  command
      .add_flag(
          "--prefer-reduce-scatter", flags.limits.prefer_reduce_scatter,
          "Gradients are reduce-scattered and new weights gathered wherever that moves no more "
          "bytes than an all-reduce")
      ->group(group);
  command
      .add_option("--combine-gathers", flags.combine_gathers,
                  "Gather weights of one phase together up to so many bytes, such as 16MiB. "
                  "Default: those of up to 64 KiB, 256 KiB at once")
      ->group(group);
  command
      .add_option("--cost-model", flags.cost_model,
                  "roofline (the cluster's rates), measured (this machine's, see minka profile) or "
                  "alpa (communication alone, by Alpa's formulas)")
      ->capture_default_str()
      ->group(group);
  command.add_option("--alpha", flags.alpha, "For alpa: latency per mesh axis, such as 1,1")
      ->group(group);
  command.add_option("--beta", flags.beta, "For alpa: cost per byte per mesh axis, such as 1,0.1")
      ->group(group);
  command
      .add_flag("--allow-replicated-dots", flags.allow_replicated_dots,
                "For alpa: dots may run undivided on an axis")
      ->group(group);
  command
      .add_option("--gap", flags.gap,
                  "Stop once (objective - lower bound) / objective is at most this")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--work-limit", flags.work_limit,
                  "Stop searching after so much work, all meshes and methods together, in units of "
                  "about a nanosecond")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--time-limit", flags.time_limit,
                  "Stop searching after this time in any case; what it stops depends on how busy "
                  "the machine is")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--threads", flags.threads,
                  "Threads; the answer depends on whether it is one or more")
      ->capture_default_str()
      ->group(group);
}

bool ChoosesMicroBatches(const PlanningFlags& flags) { return flags.micro_batches == "auto"; }

bool IsOfSeveralKinds(const PlanningFlags& flags) {
  if (IsLocal(flags)) return false;
  const absl::StatusOr<std::vector<Cluster>> kinds = Cluster::OfKinds(flags.cluster);
  return kinds.ok() && kinds->size() > 1;
}

std::vector<std::string> GivenPlanningFlags(const CLI::App& command) {
  std::vector<std::string> given;
  for (const CLI::Option* const option : command.get_options()) {
    if (option->get_group() == kGroup && option->count() > 0) given.push_back(option->get_name());
  }
  return given;
}

absl::StatusOr<PlanRequest> RequestOf(const PlanningFlags& flags) {
  PlanRequest request{.search = {.pins = flags.pins,
                                 .limits = flags.limits,
                                 .gap = flags.gap,
                                 .work_limit = flags.work_limit,
                                 .num_threads = flags.threads}};
  ASSIGN_OR_RETURN(request.micro_batches, MicroBatchesOf(flags));
  SearchOptions& search = request.search;
  if (!flags.combine_gathers.empty()) {
    ASSIGN_OR_RETURN(search.limits.combine_gathers_bytes,
                     ParseBytes("--combine-gathers", flags.combine_gathers));
  }
  for (const std::string& text : flags.meshes) {
    ASSIGN_OR_RETURN(Mesh mesh, Mesh::Parse(text));
    request.meshes.push_back(std::move(mesh));
  }
  ASSIGN_OR_RETURN(request.pipeline, PipelineOf(flags, request.meshes, search.limits));
  RETURN_IF_ERROR(SetHosts(flags, request));
  if (!request.pipeline) request.methods.clear();
  for (const std::string& name : SplitAtCommas(flags.method)) {
    if (request.pipeline) break;  // every stage by shard
    ASSIGN_OR_RETURN(const Method method, ParseMethod(name));
    request.methods.push_back(method);
  }
  if (!flags.memory_limit.empty()) {
    ASSIGN_OR_RETURN(search.memory_limit_bytes, ParseBytes("--memory-limit", flags.memory_limit));
  } else if (request.num_kinds() == 1 && request.cluster.device.memory_bytes > 0) {
    search.memory_limit_bytes = request.cluster.device.memory_bytes;
  }
  ASSIGN_OR_RETURN(request.remat, RematOf(flags));
  ASSIGN_OR_RETURN(request.cost_model, CostModelOf(flags));
  ASSIGN_OR_RETURN(search.time_limit_seconds, ParseSeconds("--time-limit", flags.time_limit));
  if (flags.gap < 0 || flags.gap >= 1) {
    return InvalidArgument("--gap {} is not in [0, 1)", flags.gap);
  }
  if (flags.work_limit < 1) {
    return InvalidArgument("--work-limit {} is not at least 1", flags.work_limit);
  }
  if (flags.threads < 1) return InvalidArgument("--threads {} is not at least 1", flags.threads);
  return request;
}

std::map<std::string, std::string> ToOptions(const PlanningFlags& flags) {
  std::map<std::string, std::string> options = {{"cluster", flags.cluster},
                                                {"method", flags.method},
                                                {"cost-model", flags.cost_model},
                                                {"gap", fmt::format("{}", flags.gap)},
                                                {"time-limit", flags.time_limit}};
  const PlanningFlags defaults;
  if (flags.work_limit != defaults.work_limit) {
    options["work-limit"] = fmt::to_string(flags.work_limit);
  }
  if (flags.threads != defaults.threads) options["threads"] = fmt::to_string(flags.threads);
  const auto put = [&options](const char* flag, const std::string& value) {
    if (!value.empty()) options[flag] = value;
  };
  put("mesh", fmt::format("{}", fmt::join(flags.meshes, " ")));
  put("pin", fmt::format("{}", fmt::join(flags.pins, " ")));
  put("memory-limit", flags.memory_limit);
  put("alpha", flags.alpha);
  put("beta", flags.beta);
  if (flags.num_devices) options["num-devices"] = fmt::format("{}", *flags.num_devices);
  put("batch-axis", flags.limits.batch_axis);
  put("combine-gathers", flags.combine_gathers);
  if (flags.micro_batches != defaults.micro_batches) options["micro-batches"] = flags.micro_batches;
  if (flags.layers != defaults.layers) options["pipeline-layers"] = flags.layers;
  if (flags.stages != defaults.stages) options["stages"] = flags.stages;
  if (flags.schedule != defaults.schedule) options["schedule"] = flags.schedule;
  put("submeshes", flags.submeshes);
  put("submesh-choices", flags.submesh_choices);
  put("stage-shares", flags.stage_shares);
  if (flags.dp) options["dp"] = fmt::to_string(*flags.dp);
  if (flags.op) options["op"] = fmt::to_string(*flags.op);
  if (flags.pp) options["pp"] = fmt::to_string(*flags.pp);
  if (flags.remat != "auto") options["remat"] = flags.remat;
  const auto put_flag = [&options](const char* flag, bool value) {
    if (value) options[flag] = "true";
  };
  put_flag("allow-replicated-dots", flags.allow_replicated_dots);
  put_flag("per-micro-batch", flags.per_micro_batch);
  put_flag("narrow-sums", flags.narrow_sums);
  put_flag("no-all-gather", flags.limits.no_all_gather);
  put_flag("no-all-to-all", flags.limits.no_all_to_all);
  put_flag("no-sequence-split", flags.limits.no_sequence_split);
  put_flag("no-replicated-parameters", flags.limits.no_replicated_parameters);
  put_flag("prefer-reduce-scatter", flags.limits.prefer_reduce_scatter);
  return options;
}

absl::StatusOr<PlanningFlags> PlanningFromOptions(
    const std::map<std::string, std::string>& options) {
  PlanningFlags flags;
  const auto get = [&options](const char* flag, std::string& value) {
    const auto found = options.find(flag);
    if (found != options.end()) value = found->second;
  };
  const auto get_number = [&options](const char* flag, auto& value) -> absl::Status {
    const auto found = options.find(flag);
    if (found == options.end() || CLI::detail::lexical_cast(found->second, value)) {
      return absl::OkStatus();
    }
    return InvalidArgument("the plan's option {} is \"{}\", no number", flag, found->second);
  };
  get("cluster", flags.cluster);
  get("method", flags.method);
  get("cost-model", flags.cost_model);
  get("time-limit", flags.time_limit);
  get("memory-limit", flags.memory_limit);
  get("alpha", flags.alpha);
  get("beta", flags.beta);
  get("batch-axis", flags.limits.batch_axis);
  get("combine-gathers", flags.combine_gathers);
  get("micro-batches", flags.micro_batches);
  get("remat", flags.remat);
  get("pipeline-layers", flags.layers);
  get("stages", flags.stages);
  get("submeshes", flags.submeshes);
  get("submesh-choices", flags.submesh_choices);
  get("stage-shares", flags.stage_shares);
  get("schedule", flags.schedule);
  if (options.contains("dp")) RETURN_IF_ERROR(get_number("dp", flags.dp.emplace()));
  if (options.contains("op")) RETURN_IF_ERROR(get_number("op", flags.op.emplace()));
  if (options.contains("pp")) RETURN_IF_ERROR(get_number("pp", flags.pp.emplace()));
  RETURN_IF_ERROR(get_number("gap", flags.gap));
  RETURN_IF_ERROR(get_number("work-limit", flags.work_limit));
  RETURN_IF_ERROR(get_number("threads", flags.threads));
  if (options.contains("num-devices")) {
    RETURN_IF_ERROR(get_number("num-devices", flags.num_devices.emplace()));
  }
  flags.allow_replicated_dots = options.contains("allow-replicated-dots");
  flags.per_micro_batch = options.contains("per-micro-batch");
  flags.narrow_sums = options.contains("narrow-sums");
  flags.limits.no_all_gather = options.contains("no-all-gather");
  flags.limits.no_all_to_all = options.contains("no-all-to-all");
  flags.limits.no_sequence_split = options.contains("no-sequence-split");
  flags.limits.no_replicated_parameters = options.contains("no-replicated-parameters");
  flags.limits.prefer_reduce_scatter = options.contains("prefer-reduce-scatter");
  std::string meshes, pins;
  get("mesh", meshes);
  get("pin", pins);
  flags.meshes = SplitAfter(meshes, "");
  flags.pins = SplitAfter(pins, "]");
  return flags;
}

std::string DescribeProgress(const std::string& what, double seconds, double gap) {
  return fmt::format("{}: {:.1f} s{}", what, seconds,
                     gap < 1 ? fmt::format(", gap {:.2f} %", 100 * gap) : "");
}

std::string DescribeCandidates(const PlanResult& result) {
  if (result.candidates.size() < 2) return "";
  std::vector<ComparisonRow> rows;
  for (size_t i = 0; i < result.candidates.size(); ++i) {
    const PlanCandidate& candidate = result.candidates[i];
    rows.push_back({.method = std::string(MethodName(candidate.method)),
                    .mesh = candidate.mesh.ToString(),
                    .plan = candidate.status.ok() ? &candidate.plan : nullptr,
                    .fits = candidate.fits,
                    .chosen = static_cast<int>(i) == result.best,
                    .why_not = Message(candidate.status)});
  }
  return ComparisonTable(rows) + "\n";
}

}  // namespace minka
