// Who was added is told once for each time, on the loop's thread.
#include "daemon/outbox.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace ellm::daemon {
namespace {

struct Noting : Addressee {
  explicit Noting(std::function<void()> f) : work(std::move(f)) {}
  void collect() override { work(); }
  std::function<void()> work;
};

TEST(Outbox, TellsEachOnceInTheirOrder) {
  Loop loop;
  Outbox outbox(loop);
  std::vector<int> told;
  const auto first = std::make_shared<Noting>([&] { told.push_back(1); });
  const auto second = std::make_shared<Noting>([&] { told.push_back(2); });
  const auto last = std::make_shared<Noting>([&] {
    told.push_back(3);
    loop.stop();
  });
  std::thread engine([&] {
    EXPECT_TRUE(outbox.flush());  // nothing to tell
    outbox.add(first);
    outbox.add(second);
    EXPECT_TRUE(outbox.flush());
    EXPECT_TRUE(outbox.flush());
    outbox.add(last);  // before the loop comes to the others
  });
  engine.join();
  loop.run();
  EXPECT_EQ(told, (std::vector{1, 2, 3}));
  EXPECT_EQ(first.use_count(), 1);
}

TEST(Outbox, OneThatThrowsKeepsNobodyFromHearing) {
  Loop loop;
  Outbox outbox(loop);
  int told = 0;
  outbox.add(std::make_shared<Noting>([] { throw std::runtime_error("none of yours"); }));
  outbox.add(std::make_shared<Noting>([&] { ++told; }));
  EXPECT_TRUE(outbox.flush());
  loop.post([&] { loop.stop(); });
  loop.run();
  EXPECT_EQ(told, 1);
}

/// What is added while others are told waits for the next flush.
TEST(Outbox, WhoIsAddedMeanwhileIsToldNextTime) {
  Loop loop;
  Outbox outbox(loop);
  int told = 0;
  std::shared_ptr<Noting> again;
  again = std::make_shared<Noting>([&] {
    if (++told == 3) return loop.stop();
    outbox.add(again);
    EXPECT_TRUE(outbox.flush());
  });
  outbox.add(again);
  EXPECT_TRUE(outbox.flush());
  loop.run();
  EXPECT_EQ(told, 3);
}

}  // namespace
}  // namespace ellm::daemon
