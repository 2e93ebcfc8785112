// One file over HTTP into a part file, going on where an earlier attempt stopped. One thread.
//
// Beside FILE stands FILE.source: the address and the validator (a strong ETag, else Last-Modified) of what FILE holds
// the beginning of. The rest is asked for with If-Range, so that a file that has changed meanwhile comes whole. What
// FILE holds without such a note is fetched anew.
#pragma once
#include <curl/curl.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "client/pull/part_file.h"

namespace ellm::pull {

struct DownloadOptions {
  std::string token;                       // for the hub; never sent to another host
  uint32_t timeout_seconds = 60;           // without a byte
  uint32_t retries = 5;                    // attempts in a row that bring nothing
  std::function<bool()> interrupted = {};  // asked about once a second and after a signal
};

struct Fetched {
  uint64_t bytes = 0;
  std::string sha256;  // as the hub states it, or empty
};

class Downloader {
 public:
  explicit Downloader(DownloadOptions options);

  /// The length of a file, 0 where the server does not say (or does not answer to HEAD).
  uint64_t size_of(const std::string& url, bool hub);

  /// Fetches the whole of `url`. `hub`: the token goes with it, and checksums in the answer are believed.
  /// Throws PullError; what came so far stays where going on makes sense.
  Fetched fetch(const std::string& url, bool hub, const std::filesystem::path& file, const Progress& progress);

 private:
  DownloadOptions options_;
  std::unique_ptr<CURL, void (*)(CURL*)> curl_;
};

}  // namespace ellm::pull
