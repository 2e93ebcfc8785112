// Heavy jobs leave a thread to the light ones.
#include "daemon/prepare_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>

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

}  // namespace
}  // namespace ellm::daemon
