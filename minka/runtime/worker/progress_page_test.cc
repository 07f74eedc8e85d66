#include "minka/runtime/worker/progress_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gtest/gtest.h"
#include "minka/base/status.h"

namespace minka {
namespace {

ProgressPage OtherEnd(const ProgressPage& page) {
  return ProgressPage::Map(FileDescriptor(::dup(page.file()))).value();
}

TEST(ProgressPage, OneEndReadsWhatTheOtherNotes) {
  ProgressPage worker = ProgressPage::Create().value();
  const ProgressPage driver = OtherEnd(worker);
  EXPECT_EQ(ToString(driver.Read()), "while it started");
  worker.Note(WorkerActivity::kLoading, 3);
  EXPECT_EQ(ToString(driver.Read()), "while it loaded program 3");
  worker.NoteStep(3, 12);
  worker.NoteInstruction(7);
  EXPECT_EQ(ToString(driver.Read()), "at step 12, instruction 7 of program 3");
  worker.NoteStep(3, 13);
  EXPECT_EQ(ToString(driver.Read()), "at step 13, instruction 0 of program 3");
}

TEST(ProgressPage, EveryActivityHasItsWords) {
  ProgressPage page = ProgressPage::Create().value();
  std::string texts;
  for (uint32_t activity = 0; activity <= 10; ++activity) {
    page.Note(static_cast<WorkerActivity>(activity), 1);
    texts += ToString(page.Read()) + "\n";
  }
  EXPECT_EQ(texts,
            "while it started\n"
            "while it waited\n"
            "while it opened its devices\n"
            "while it connected to other workers\n"
            "while it loaded program 1\n"
            "while it took arrays\n"
            "at step 0, instruction 0 of program 1\n"
            "while it gave arrays\n"
            "while it wrote its part of a checkpoint\n"
            "while it read its part of a checkpoint\n"
            "at something unknown\n");
}

// A worker must not be able to end its driver by SIGBUS.
TEST(ProgressPage, NeitherEndCanCutTheMemory) {
  const ProgressPage page = ProgressPage::Create().value();
  EXPECT_NE(::ftruncate(page.file(), 0), 0);
}

TEST(ProgressPage, OtherFilesAreRefused) {
  const auto error = [](int file) {
    return Message(ProgressPage::Map(FileDescriptor(file)).status());
  };
  const auto memory = [](off_t bytes) {
    const int file = ::memfd_create("test", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(file, bytes), 0);
    return file;
  };
  EXPECT_EQ(error(-1), "the progress page cannot be read: Bad file descriptor");
  EXPECT_EQ(error(memory(8)), "the progress page has 8 bytes, not 4096");
  EXPECT_EQ(error(memory(4096)), "the progress page is that of another version of minka");
}

TEST(ProgressPage, AWorkerTakesTheFileThatTheVariableNames) {
  ASSERT_EQ(::setenv(kProgressPageVariable, "3x", 1), 0);
  EXPECT_EQ(Message(ProgressPage::OfThisWorker().status()),
            "MINKA_WORKER_PROGRESS=3x names no file");
  const ProgressPage driver = ProgressPage::Create().value();
  ASSERT_EQ(::setenv(kProgressPageVariable, std::to_string(::dup(driver.file())).c_str(), 1), 0);
  ProgressPage worker = ProgressPage::OfThisWorker().value();
  EXPECT_NE(::fcntl(worker.file(), F_GETFD) & FD_CLOEXEC, 0);
  worker.Note(WorkerActivity::kWaiting);
  EXPECT_EQ(driver.Read().activity, WorkerActivity::kWaiting);
  ASSERT_EQ(::unsetenv(kProgressPageVariable), 0);
  EXPECT_TRUE(ProgressPage::OfThisWorker().ok());
}

}  // namespace
}  // namespace minka
