// Heavy jobs leave a thread to the light ones; whoever waits for the outcome of work hears of it.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>

#include "daemon/in_pool.h"

namespace ellm::daemon {
namespace {

TEST(PreparePool, LightJobsDoNotWaitForHeavyOnes) {
  std::promise<void> gate, light_ran, heavy_ran;
  const auto opened = gate.get_future().share();
  std::atomic<int> at_once{0}, most{0};
  PreparePool pool(2);
  for (int i = 0; i < 3; ++i) {
    const auto heavy = [&, i] {
      most = std::max(most.load(), ++at_once);
      opened.wait();
      --at_once;
      if (i == 2) heavy_ran.set_value();
    };
    pool.submit(heavy, PreparePool::Weight::heavy);
  }
  pool.submit([] { throw std::runtime_error("this is logged"); });
  pool.submit([&] { light_ran.set_value(); });
  EXPECT_EQ(light_ran.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  gate.set_value();
  EXPECT_EQ(heavy_ran.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_EQ(most, 1);
}

TEST(InPool, EverybodyHearsWhatBecameOfTheWork) {
  Loop loop;
  PreparePool pool(2);
  const auto here = std::this_thread::get_id();
  std::vector<std::string> told;
  const auto then = [&](const std::optional<std::string>& outcome) {
    EXPECT_EQ(std::this_thread::get_id(), here);
    told.push_back(outcome.value_or("nothing"));
    if (told.size() == 3) loop.stop();
  };
  const auto run = [&](const std::function<std::string()>& work) {
    in_pool(pool, loop, PreparePool::Weight::heavy, work, then);
  };
  run([&] {
    EXPECT_NE(std::this_thread::get_id(), here);
    return std::string("done");
  });
  run([]() -> std::string { throw std::bad_alloc(); });
  run([]() -> std::string { throw std::runtime_error("this is logged"); });
  loop.run();
  EXPECT_EQ(told, (std::vector<std::string>{"done", "nothing", "nothing"}));
}

/// What pays for the work, or is a file, goes before its outcome is seen.
TEST(InPool, TheWorkIsGoneWhenItsOutcomeComes) {
  Loop loop;
  PreparePool pool(2);
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = held;
  in_pool(
      pool, loop, PreparePool::Weight::light, [held = std::move(held)] { return *held; },
      [&](std::optional<int> outcome) {
        EXPECT_EQ(outcome, 1);
        EXPECT_TRUE(seen.expired());
        loop.stop();
      });
  loop.run();
}

}  // namespace
}  // namespace ellm::daemon
