// See kv_plan.h.
#include "daemon/kv_plan.h"

#include <algorithm>
#include <cstdio>

#include "daemon/model/model.h"

namespace ellm::daemon {
namespace {

constexpr uint32_t kLeastTokens = 2048;  // of KV, that make a model worth loading

uint64_t pages_for(uint64_t tokens) { return (tokens + shm::kPageTokens - 1) / shm::kPageTokens; }

}  // namespace

std::string human_bytes(uint64_t bytes) {
  const auto count = static_cast<double>(bytes);
  char text[32];
  if (bytes >= 1'000'000'000) std::snprintf(text, sizeof text, "%.1f GB", count / 1e9);
  else if (bytes >= 10'000'000) std::snprintf(text, sizeof text, "%.0f MB", count / 1e6);
  else std::snprintf(text, sizeof text, "%.0f KB", count / 1e3);
  return text;
}

KvPlan plan_kv(const std::string& name, const Config& config, const MemoryNeeds& needs) {
  const uint32_t trained = std::max(1u, needs.trained_context);
  const uint32_t wanted = config.context == 0 ? trained : std::min(config.context, trained);
  const uint64_t page = needs.geometry.page_bytes(), context_pages = pages_for(wanted);
  const uint64_t fixed = needs.weight_bytes + needs.work_bytes;
  const uint64_t left = needs.available_bytes - std::min(needs.available_bytes, fixed);
  uint64_t pages, least = std::min(context_pages, pages_for(kLeastTokens));
  if (config.kv.memory.value != 0) {
    pages = config.kv.memory.value / page;
    if (pages < least) {
      throw model::LoadError(name + ": kv.memory is " + human_bytes(config.kv.memory.value) + "; " +
                             std::to_string(least * shm::kPageTokens) + " tokens of keys and values need " +
                             human_bytes(least * page));
    }
    least = pages;
  } else {
    pages = std::min(left / 4 / page, context_pages * config.limits.running);
    pages = std::max(pages, std::min(context_pages, left / 10 * 9 / page));
  }
  if (fixed > needs.available_bytes || least * page > left || pages < least) {
    throw model::LoadError(name + ": needs " + human_bytes(needs.weight_bytes) + " for weights, " +
                           human_bytes(needs.work_bytes) + " to work and " + human_bytes(least * page) + " for " +
                           std::to_string(least * shm::kPageTokens) + " tokens of keys and values, together " +
                           human_bytes(fixed + least * page) + " of memory; " + human_bytes(needs.available_bytes) +
                           " are available");
  }
  pages = std::min<uint64_t>(pages, UINT32_MAX);
  KvPlan plan;
  plan.tokens = pages * shm::kPageTokens;
  plan.least_tokens = (config.kv.memory.value != 0 ? pages : std::min(pages, context_pages)) * shm::kPageTokens;
  plan.most_tokens = (config.kv.memory.value != 0 ? pages : std::max(pages, left / 2 / page)) * shm::kPageTokens;
  plan.context = static_cast<uint32_t>(std::min<uint64_t>(wanted, plan.tokens));
  return plan;
}

}  // namespace ellm::daemon
