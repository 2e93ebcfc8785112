// What a `cache` request looks at and changes in the caches of loaded models, and the reply that is made of it. One
// object goes from the I/O thread to the engine's (run), then to the pool (reply).
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/messages.h"
#include "daemon/namespaces.h"
#include "daemon/registry.h"
#include "daemon/serve/prefix_cache.h"
#include "daemon/serve/servable.h"

namespace ellm::daemon {

/// Whose pages a request is about.
struct CacheScope {
  uint64_t name_space = 0;             // list, pin, unpin, flush
  std::vector<uint64_t> visible = {};  // stat
  bool everybody = false;              // stat, flush
};

class CacheQuery {
 public:
  CacheQuery(client::Cache request, CacheScope scope) : request_(std::move(request)), scope_(std::move(scope)) {}

  const client::Cache& request() const { return request_; }
  /// Engine thread, once for each model that the request is about.
  void run(const std::string& model, const serve::Servable& servable, serve::PrefixCache& cache);
  /// After that; throws PromptError.
  client::CacheReply reply(const Namespaces& namespaces) const;

 private:
  struct Row {
    client::CachedPrefix prefix;
    std::shared_ptr<const model::Model> model;
    std::vector<uint32_t> head, tail;
  };
  struct Owner {
    client::CacheOwner owner;
    uint64_t name_space;
  };

  void list(const std::string& model, const serve::Servable& servable, const shm::PageStore& store);
  void stat(const std::string& model, const shm::PageStore& store);
  void change_pin(const std::string& model, const serve::Servable& servable, shm::PageStore& store);
  void flush(shm::PageStore& store);
  Row row_of(const std::string& model, const serve::Servable& servable, const shm::PageStore& store,
             shm::PageId page) const;

  const client::Cache request_;
  const CacheScope scope_;
  bool visited_ = false, ambiguous_ = false;
  std::vector<Row> rows_;
  std::vector<client::CacheModel> models_;
  std::vector<Owner> owners_;
  uint64_t next_ = 0, bytes_ = 0;
  uint32_t pages_ = 0;
  std::optional<shm::PageStore::Pin> refused_;
};

/// What is wrong with the request itself, or empty.
std::string cache_fault(const client::Cache& request);

/// Why a prefix was not pinned.
Failure pin_failure(shm::PageStore::Pin outcome);

}  // namespace ellm::daemon
