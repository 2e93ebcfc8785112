// The cache through ellm.h, and requests in a namespace, against a server that the test scripts.
#include <utility>

#include "tests/client/c_abi_fixture.h"

namespace ellm::client {
namespace {

CacheReply prefix_of(uint32_t id, bool pinned) {
  CacheReply reply;
  reply.id = id;
  CachedPrefix& prefix = reply.prefixes.emplace_back();
  prefix.model = "m", prefix.namespace_ = "team", prefix.prefix = "6f1c02d9", prefix.head = "Once", prefix.tail = "end";
  prefix.tokens = 70, prefix.bytes = uint64_t{5} << 32, prefix.age_s = 1.5, prefix.pinned = pinned;
  return reply;
}

TEST_F(CAbi, TheCacheIsListedPinnedAndFlushed) {
  features_ = {kFeatureCache};
  serve([](Peer& peer) {
    auto list = peer.expect<Cache>();
    EXPECT_TRUE(list.action == CacheAction::list && list.model == "m" && list.namespace_ == "team");
    peer.send(prefix_of(list.id, true));
    for (const CacheAction action : {CacheAction::pin, CacheAction::unpin}) {
      auto change = peer.expect<Cache>();
      EXPECT_TRUE(change.action == action && change.prefix == "6f1c02d9" && change.namespace_ == "team");
      peer.send(prefix_of(change.id, action == CacheAction::pin));
    }
    auto stat = peer.expect<Cache>();
    EXPECT_TRUE(stat.action == CacheAction::stat && stat.model.empty() && stat.whose == "all");
    CacheReply totals;
    totals.id = stat.id;
    totals.models = {{"m", 32, 1000, 50, 10, 30, 5, 20, 1}};
    totals.owners = {{"m", "uid 7", 30, 5, 2, 25, 30000, 400, 500, 6}};
    peer.send(totals);
    auto flush = peer.expect<Cache>();
    EXPECT_TRUE(flush.action == CacheAction::flush && flush.pinned && flush.whose == "7" && flush.model == "m");
    CacheReply flushed;
    flushed.id = flush.id, flushed.pages = 30, flushed.bytes = 30000;
    peer.send(flushed);
  });
  connect();
  ellm_prefix_info prefix{};
  prefix.struct_size = sizeof prefix;
  for (int i = 0; i < 3; i++) {
    ASSERT_EQ(i == 0   ? ellm_cache_list(client_, "m", "team", &reply_)
              : i == 1 ? ellm_cache_pin(client_, "team", "6f1c02d9", &reply_)
                       : ellm_cache_unpin(client_, "team", "6f1c02d9", &reply_),
              ELLM_OK)
        << ellm_error_message();
    ASSERT_EQ(ellm_reply_prefix_count(reply_), 1u);
    ASSERT_EQ(ellm_reply_prefix(reply_, 0, &prefix), ELLM_OK);
    EXPECT_STREQ(prefix.prefix, "6f1c02d9");
    EXPECT_STREQ(prefix.name_space, "team");
    EXPECT_STREQ(prefix.tail, "end");
    EXPECT_TRUE(prefix.tokens == 70 && prefix.bytes == uint64_t{5} << 32 && prefix.age_s == 1.5);
    EXPECT_EQ(prefix.pinned, i < 2);
    EXPECT_EQ(ellm_reply_prefix(reply_, 1, &prefix), ELLM_E_ARGUMENT);
    EXPECT_EQ(ellm_reply_cache_model_count(reply_), 0u);
    ellm_reply_free(std::exchange(reply_, nullptr));
  }
  ASSERT_EQ(ellm_cache_stat(client_, nullptr, "all", &reply_), ELLM_OK) << ellm_error_message();
  ellm_cache_model_info model{};
  model.struct_size = sizeof model;
  ASSERT_EQ(ellm_reply_cache_model(reply_, 0, &model), ELLM_OK);
  EXPECT_TRUE(model.page_tokens == 32 && model.free_pages == 10 && model.most_pinned_pages == 20);
  ellm_cache_owner_info owner{};
  owner.struct_size = sizeof owner;
  ASSERT_EQ(ellm_reply_cache_owner_count(reply_), 1u);
  ASSERT_EQ(ellm_reply_cache_owner(reply_, 0, &owner), ELLM_OK);
  EXPECT_STREQ(owner.owner, "uid 7");
  EXPECT_TRUE(owner.share_pages == 25 && owner.computed_tokens == 500 && owner.evicted_pages == 6);
  ellm_reply_free(std::exchange(reply_, nullptr));
  ASSERT_EQ(ellm_cache_flush(client_, "m", nullptr, "7", 1, &reply_), ELLM_OK) << ellm_error_message();
  ellm_cache_change_info change{};
  change.struct_size = sizeof change;
  ASSERT_EQ(ellm_reply_cache_change(reply_, &change), ELLM_OK);
  EXPECT_TRUE(change.flushed_pages == 30 && change.flushed_bytes == 30000);
  ellm_reply* none = nullptr;
  EXPECT_EQ(ellm_cache_pin(client_, nullptr, nullptr, &none), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_reply_prefix_count(nullptr), 0u);
}

TEST_F(CAbi, TextsAreComputedInAdvanceInANamespace) {
  features_ = {kFeatureCache};
  serve([](Peer& peer) {
    for (const bool chat : {false, true}) {
      auto warm = peer.expect<Cache>();
      EXPECT_TRUE(warm.action == CacheAction::warm && warm.namespace_ == "team" && warm.pinned == chat);
      EXPECT_EQ(warm.text, chat ? "" : "Once");
      EXPECT_EQ(warm.messages.size(), chat ? 1u : 0u);
      EXPECT_EQ(warm.variables, chat ? "{\"add_generation_prompt\": false}" : "");
      CacheReply reply;
      reply.id = warm.id, reply.usage.prompt_tokens = 9, reply.usage.cached_tokens = 4;
      peer.send(reply);
    }
    auto score = peer.expect<Score>();
    EXPECT_EQ(score.namespace_, "team");
    peer.send(ScoreReply{score.id, {1, 2}, {-1}, {}, true, {}});
    auto generate = peer.expect<Generate>();
    EXPECT_EQ(generate.namespace_, "team");
    peer.send(done(generate.id));
    auto chat = peer.expect<Chat>();
    EXPECT_EQ(chat.namespace_, "team");
    peer.send(done(chat.id));
  });
  connect();
  ellm_request_set_text(request_, ELLM_NAMESPACE, "team", ELLM_ZERO_TERMINATED);
  ellm_request_set_text(request_, ELLM_PROMPT, "Once", ELLM_ZERO_TERMINATED);
  ellm_cache_change_info change{};
  change.struct_size = sizeof change;
  for (const int pin : {0, 1}) {
    if (pin) ellm_request_add_message(request_, "system", "Be brief.", ELLM_ZERO_TERMINATED);
    ASSERT_EQ(ellm_cache_warm(client_, request_, pin, &reply_), ELLM_OK) << ellm_error_message();
    ASSERT_EQ(ellm_reply_cache_change(reply_, &change), ELLM_OK);
    EXPECT_TRUE(change.prompt_tokens == 9 && change.cached_tokens == 4);
    ellm_reply_free(std::exchange(reply_, nullptr));
  }
  ASSERT_EQ(ellm_score(client_, request_, 0, &reply_), ELLM_OK) << ellm_error_message();
  EXPECT_EQ(ellm_reply_cache_change(reply_, &change), ELLM_E_ARGUMENT);
  EXPECT_EQ(ellm_generate(client_, request_, nullptr, nullptr, nullptr), ELLM_OK) << ellm_error_message();
  EXPECT_EQ(ellm_chat(client_, request_, nullptr, nullptr, nullptr), ELLM_OK) << ellm_error_message();
  const uint32_t ids[] = {1};
  ellm_request_set_tokens(request_, ids, 1);
  ellm_reply* none = nullptr;
  EXPECT_EQ(ellm_cache_warm(client_, request_, 0, &none), ELLM_E_ARGUMENT);
}

}  // namespace
}  // namespace ellm::client
