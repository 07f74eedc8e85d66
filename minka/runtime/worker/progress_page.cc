#include "minka/runtime/worker/progress_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <system_error>

#include "minka/base/status.h"

namespace minka {
namespace {

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
  FileDescriptor file(::memfd_create("minka progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Sealed: a worker that cuts the file would end its driver by SIGBUS.
  if (file.number() < 0 || ::ftruncate(file.number(), kPageBytes) != 0 ||
      ::fcntl(file.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Unavailable("cannot make shared memory: {}", std::strerror(errno));
  }
  const Shared empty;
  if (::pwrite(file.number(), &empty.magic, sizeof(empty.magic), 0) != sizeof(empty.magic)) {
    return Unavailable("cannot write shared memory: {}", std::strerror(errno));
  }
  return Map(std::move(file));
}

absl::StatusOr<ProgressPage> ProgressPage::OfThisWorker() {
  const char* const variable = std::getenv(kProgressPageVariable);
  if (variable == nullptr) return Create();
  const std::string_view text = variable;
  int number = -1;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  if (error != std::errc() || end != text.end() || number < 0) {
    return InvalidArgument("{}={} names no file", kProgressPageVariable, text);
  }
  ::fcntl(number, F_SETFD, FD_CLOEXEC);
  return Map(FileDescriptor(number));
}

absl::StatusOr<ProgressPage> ProgressPage::Map(FileDescriptor file) {
  struct stat about = {};
  if (::fstat(file.number(), &about) != 0) {
    return InvalidArgument("the progress page cannot be read: {}", std::strerror(errno));
  }
  if (about.st_size != kPageBytes) {
    return InvalidArgument("the progress page has {} bytes, not {}", about.st_size, kPageBytes);
  }
  void* const address =
      ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  if (address == MAP_FAILED) {
    return InvalidArgument("the progress page cannot be mapped: {}", std::strerror(errno));
  }
  ProgressPage page;
  page.file_ = std::move(file);
  page.shared_ = std::launder(static_cast<Shared*>(address));
  if (page.shared_->magic != kPageMagic) {
    return InvalidArgument("the progress page is that of another version of minka");
  }
  return page;
}

ProgressPage::ProgressPage(ProgressPage&& other) noexcept
    : file_(std::move(other.file_)), shared_(std::exchange(other.shared_, nullptr)) {}

ProgressPage& ProgressPage::operator=(ProgressPage&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(shared_, other.shared_);
  return *this;
}

ProgressPage::~ProgressPage() {
  if (shared_ != nullptr) ::munmap(shared_, kPageBytes);
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
