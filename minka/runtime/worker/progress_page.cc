#include "minka/runtime/worker/progress_page.h"

#include <atomic>
#include <new>
#include <utility>

#include "minka/base/status.h"

namespace minka {
namespace {

constexpr const char* kPageName = "progress page";
constexpr size_t kPageBytes = 4096;
constexpr uint64_t kPageMagic = 0x31676f72706b6e6d;  // "mnkprog1"; another layout is another number

}  // namespace

struct ProgressPage::Shared {
  uint64_t magic = kPageMagic;
  std::atomic<uint32_t> activity{0};
  std::atomic<int32_t> instruction{0};
  std::atomic<uint64_t> program{0}, step{0};
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
};

std::string ToString(const WorkerProgress& progress) {
  switch (progress.activity) {
    case WorkerActivity::kStarting:
      return "while it started";
    case WorkerActivity::kWaiting:
      return "while it waited";
    case WorkerActivity::kOpening:
      return "while it opened its devices";
    case WorkerActivity::kConnecting:
      return "while it connected to other workers";
    case WorkerActivity::kLoading:
      return fmt::format("while it loaded program {}", progress.program);
    case WorkerActivity::kPutting:
      return "while it took arrays";
    case WorkerActivity::kStepping:
      return fmt::format("at step {}, instruction {} of program {}", progress.step,
                         progress.instruction, progress.program);
    case WorkerActivity::kFetching:
      return "while it gave arrays";
    case WorkerActivity::kStoring:
      return "while it wrote its part of a checkpoint";
    case WorkerActivity::kRestoring:
      return "while it read its part of a checkpoint";
  }
  // The worker wrote what it pleased.
  return "at something unknown";
}

absl::StatusOr<ProgressPage> ProgressPage::Create() {
  ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create(kPageName, kPageBytes));
  new (memory.data()) Shared;
  return Check(std::move(memory));
}

absl::StatusOr<ProgressPage> ProgressPage::OfThisWorker() {
  ASSIGN_OR_RETURN(FileDescriptor file, SharedMemory::HandedDown(kProgressPageVariable));
  return file.number() < 0 ? Create() : Map(std::move(file));
}

absl::StatusOr<ProgressPage> ProgressPage::Map(FileDescriptor file) {
  ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Map(std::move(file), kPageName));
  return Check(std::move(memory));
}

absl::StatusOr<ProgressPage> ProgressPage::Check(SharedMemory memory) {
  if (memory.size() != kPageBytes) {
    return InvalidArgument("the {} has {} bytes, not {}", kPageName, memory.size(), kPageBytes);
  }
  ProgressPage page;
  page.shared_ = std::launder(reinterpret_cast<Shared*>(memory.data()));
  page.memory_ = std::move(memory);
  if (page.shared_->magic != kPageMagic) {
    return InvalidArgument("the {} is that of another version of minka", kPageName);
  }
  return page;
}

void ProgressPage::Note(WorkerActivity activity, uint64_t program) {
  shared_->program.store(program, std::memory_order_relaxed);
  shared_->activity.store(static_cast<uint32_t>(activity), std::memory_order_relaxed);
}

void ProgressPage::NoteStep(uint64_t program, uint64_t step) {
  shared_->step.store(step, std::memory_order_relaxed);
  shared_->instruction.store(0, std::memory_order_relaxed);
  Note(WorkerActivity::kStepping, program);
}

void ProgressPage::NoteInstruction(int instruction) {
  shared_->instruction.store(instruction, std::memory_order_relaxed);
}

WorkerProgress ProgressPage::Read() const {
  return {static_cast<WorkerActivity>(shared_->activity.load(std::memory_order_relaxed)),
          shared_->program.load(std::memory_order_relaxed),
          shared_->step.load(std::memory_order_relaxed),
          shared_->instruction.load(std::memory_order_relaxed)};
}

}  // namespace minka
