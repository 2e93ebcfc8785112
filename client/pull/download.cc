// libcurl does the protocol; here is what to ask for, what to believe, and when to try again.
#include "client/pull/download.h"

#include <fcntl.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "client/pull/failure.h"
#include "client/pull/source.h"
#include "daemon/format/gguf.h"

namespace ellm::pull {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// What the headers of one response say.
struct Response {
  long status = 0;
  uint64_t length = 0;  // of the body; 0: unsaid
  std::optional<uint64_t> range_first, range_total;
  std::string etag, modified, type;
};

/// What the note beside a part file says.
struct Note {
  std::string address, validator;
};

Note read_note(const fs::path& path) {
  Note note;
  std::ifstream in(path);
  std::getline(in, note.address) && std::getline(in, note.validator);
  return note;
}

void write_note(const fs::path& path, const Note& note) {
  std::ofstream out(path, std::ios::trunc);
  out << note.address << "\n" << note.validator << "\n";
}

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return first == std::string_view::npos ? "" : std::string(text.substr(first, last - first + 1));
}

std::optional<uint64_t> number_in(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || text.size() > 19)
    return std::nullopt;
  return std::stoull(text);
}

/// "bytes 100-199/200", "bytes */200"
void read_content_range(const std::string& value, Response& response) {
  const size_t dash = value.find('-'), slash = value.find('/');
  if (!value.starts_with("bytes ") || slash == std::string::npos) return;
  if (dash != std::string::npos && dash < slash) response.range_first = number_in(value.substr(6, dash - 6));
  response.range_total = number_in(value.substr(slash + 1));
}

/// One attempt. Its callbacks keep what they must throw until libcurl has returned.
class Transfer {
 public:
  Transfer(const std::string& url, bool hub, const fs::path& file, const Progress& progress,
           const DownloadOptions& options)
      : address_(public_address(url)), hub_(hub), file_(file), progress_(progress), options_(options) {
    fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) throw PullError(EX_CANTCREAT, file.string() + ": " + std::strerror(errno));
    struct stat status{};
    ::fstat(fd_, &status);
    note_ = read_note(note_path());
    const bool known = note_.address == address_ && !note_.validator.empty();
    have_ = known ? static_cast<uint64_t>(status.st_size) : 0;
    ::lseek(fd_, static_cast<off_t>(have_), SEEK_SET);
  }
  ~Transfer() { ::close(fd_); }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  CURLcode perform(CURL* curl) {
    curl_slist* headers = nullptr;
    if (have_ > 0) {
      curl_easy_setopt(curl, CURLOPT_RANGE, (std::to_string(have_) + "-").c_str());
      headers = curl_slist_append(nullptr, ("If-Range: " + note_.validator).c_str());
    } else {
      curl_easy_setopt(curl, CURLOPT_RANGE, nullptr);
    }
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Transfer::on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Transfer::on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Transfer::on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, this);
    const uint64_t before = have_;
    const CURLcode code = curl_easy_perform(curl);
    curl_slist_free_all(headers);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, nullptr);
    if (failure_) std::rethrow_exception(failure_);
    if ((code == CURLE_OK || code == CURLE_PARTIAL_FILE) && is_body() && !begun_) begin();  // nothing came of it
    if (failure_) std::rethrow_exception(failure_);
    progressed_ = restarted_ ? have_ > 0 : have_ > before;
    return code;
  }

  /// All of it is there, and as long as it ought to be.
  bool complete() const {
    if (response_.status == 416) return have_ > 0 && response_.range_total == have_;
    return is_body() && (total_ == 0 || have_ == total_);
  }
  void start_anew() const { ::unlink(note_path().c_str()); }
  bool stalled() const { return stalled_; }
  bool progressed() const { return progressed_; }
  const Response& response() const { return response_; }
  uint64_t have() const { return have_; }
  uint64_t total() const { return total_; }
  const std::string& sha256() const { return sha256_; }

 private:
  fs::path note_path() const { return file_.string() + ".source"; }
  bool is_body() const { return response_.status == 200 || response_.status == 206; }

  static size_t on_header(char* data, size_t, size_t size, void* self) {
    static_cast<Transfer*>(self)->header(std::string_view(data, size));
    return size;
  }
  static size_t on_body(char* data, size_t, size_t size, void* self) {
    auto* transfer = static_cast<Transfer*>(self);
    try {
      transfer->body(std::string_view(data, size));
      return size;
    } catch (...) {
      transfer->failure_ = std::current_exception();
      return CURL_WRITEFUNC_ERROR;
    }
  }
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto* transfer = static_cast<Transfer*>(self);
    if (transfer->options_.interrupted && transfer->options_.interrupted()) return 1;
    // libcurl's own limit goes by an average over seconds.
    transfer->stalled_ = Clock::now() - transfer->last_byte_ > std::chrono::seconds(transfer->options_.timeout_seconds);
    return transfer->stalled_ ? 1 : 0;
  }

  void header(std::string_view line) {
    if (line.starts_with("HTTP/")) {  // of the next response: after a redirect, or an interim one
      first_response_ = response_.status == 0;
      response_ = Response();
      const size_t blank = line.find(' ');
      response_.status =
          blank == std::string_view::npos ? 0 : std::atol(std::string(line.substr(blank + 1, 3)).c_str());
      return;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    const std::string name(line.substr(0, colon)), value = trimmed(line.substr(colon + 1));
    const auto is = [&](const char* other) { return ::strcasecmp(name.c_str(), other) == 0; };
    if (is("etag")) response_.etag = value;
    if (is("last-modified")) response_.modified = value;
    if (is("content-type")) response_.type = value;
    if (is("content-length")) response_.length = number_in(value).value_or(0);
    if (is("content-range")) read_content_range(value, response_);
    if (!hub_) return;
    // The hub's own word, not the ETag of the store to which it redirects: that may be some other sum.
    if (is("x-linked-size") && stated_ == 0) stated_ = number_in(value).value_or(0);
    const bool linked = is("x-linked-etag") && !linked_;
    if (!linked && !(is("etag") && first_response_ && !linked_)) return;
    std::string sum = value;
    std::erase(sum, '"');
    sha256_ = parse_sha256(sum);
    linked_ = linked;
  }

  /// Before the first byte of the file itself.
  void begin() {
    begun_ = true;
    if (response_.status == 206 && response_.range_first == have_) {
      total_ = response_.range_total.value_or(response_.length == 0 ? 0 : have_ + response_.length);
    } else if (response_.status == 206) {
      start_anew();
      throw PullError(
          EX_PROTOCOL,
          address_ +
              ": the server sends another range than the one that was asked for; the same command fetches it anew");
    } else {
      restarted_ = have_ > 0;
      if (::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0) fail_to_write(file_, errno);
      have_ = 0;
      total_ = response_.length != 0 ? response_.length : stated_;
      const std::string& etag = response_.etag;
      write_note(note_path(), {address_, !etag.empty() && !etag.starts_with("W/") ? etag : response_.modified});
    }
    if (stated_ != 0 && total_ != 0 && stated_ != total_) {
      start_anew();
      throw PullError(EX_DATAERR, address_ + ": wrong length: the hub states " + std::to_string(stated_) +
                                      " bytes, the server sends " + std::to_string(total_));
    }
    if (total_ > have_) require_space(file_.parent_path(), total_ - have_);
  }

  void body(std::string_view bytes) {
    if (!is_body()) return;  // an error page
    last_byte_ = Clock::now();
    if (!begun_) begin();
    if (have_ < kMagic.size()) check_magic(bytes);
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_to_write(file_, errno);
      bytes.remove_prefix(static_cast<size_t>(n));
      have_ += static_cast<uint64_t>(n);
    }
    if (progress_) progress_("fetching", have_, total_);
  }

  /// A page that asks to log in, or a wrong file, shows at once and not after an hour.
  void check_magic(std::string_view bytes) {
    const std::string_view expected = kMagic.substr(have_), begins = bytes.substr(0, expected.size());
    if (expected.starts_with(begins)) return;
    start_anew();
    throw PullError(EX_DATAERR,
                    address_ + ": is not a GGUF file: it begins with " + format::quoted(bytes.substr(0, 16)) +
                        (response_.type.empty() ? "" : ", and the server calls it " + format::quoted(response_.type)));
  }

  static constexpr std::string_view kMagic = "GGUF";

  const std::string address_;
  const bool hub_;
  const fs::path file_;
  const Progress& progress_;
  const DownloadOptions& options_;
  Clock::time_point last_byte_ = Clock::now();
  int fd_ = -1;
  Note note_;
  Response response_;
  uint64_t have_ = 0, total_ = 0, stated_ = 0;
  std::string sha256_;
  bool first_response_ = true, linked_ = false, begun_ = false, restarted_ = false, progressed_ = false,
       stalled_ = false;
  std::exception_ptr failure_;
};

/// Worth another attempt: the network's fault or the server's for now.
bool passing(CURLcode code, long status) {
  switch (code) {
    case CURLE_OK: return status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_COULDNT_CONNECT: return true;
    default: return false;
  }
}

[[noreturn]] void fail_by_status(const std::string& address, long status, bool hub, bool token) {
  const std::string what = address + ": HTTP " + std::to_string(status);
  if (status == 401 || status == 403) {
    const char* why =
        token
            ? ": the hub's token was sent and is not enough; its owner may have to accept the model's licence on the hub"
        : hub ? ": not there, or private, or its licence must be accepted: HF_TOKEN may be needed"
              : ": the server wants to know who asks; HF_TOKEN is only sent to HF_ENDPOINT";
    throw PullError(EX_NOPERM, what + why);
  }
  if (status == 404 || status == 410) throw PullError(EX_NOINPUT, what + ": there is no such file: check the address");
  throw PullError(EX_UNAVAILABLE, what + ": the server refuses; try again later");
}

}  // namespace

/// The authorities that the environment names, as the curl program does; libcurl itself does not look. Without: the
/// system's.
static void trust(CURL* curl) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return value && *value ? value : nullptr;
  };
  const char* bundle = variable("CURL_CA_BUNDLE");
  const char* folder = bundle ? nullptr : variable("SSL_CERT_DIR");
  if (!bundle) bundle = variable("SSL_CERT_FILE");
  if (bundle) curl_easy_setopt(curl, CURLOPT_CAINFO, bundle);
  if (folder) curl_easy_setopt(curl, CURLOPT_CAPATH, folder);
}

Downloader::Downloader(DownloadOptions options) : options_(std::move(options)), curl_(nullptr, curl_easy_cleanup) {
  curl_global_init(CURL_GLOBAL_DEFAULT);
  curl_.reset(curl_easy_init());
  if (!curl_) throw PullError(EX_SOFTWARE, "libcurl cannot be used");
  CURL* curl = curl_.get();
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "ellm/" ELLM_VERSION);
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);  // a proxy's
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(std::min(options_.timeout_seconds, 30u)));
  trust(curl);
}

/// The address, and who asks. libcurl drops the token where a redirect leads to another host, port or protocol.
static void aim(CURL* curl, const std::string& url, bool with_token, const std::string& token) {
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, url.starts_with("https:") ? "https" : "http,https");
  curl_easy_setopt(curl, CURLOPT_HTTPAUTH, with_token ? CURLAUTH_BEARER : CURLAUTH_BASIC);
  curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, with_token ? token.c_str() : nullptr);
}

uint64_t Downloader::size_of(const std::string& url, bool hub) {
  CURL* curl = curl_.get();
  aim(curl, url, hub && !options_.token.empty(), options_.token);
  curl_easy_setopt(curl, CURLOPT_RANGE, nullptr);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, nullptr);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, nullptr);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 1L);
  curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_HTTPGET, 1L);
  curl_off_t length = 0;
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  return code == CURLE_OK && status == 200 && length > 0 ? static_cast<uint64_t>(length) : 0;
}

Fetched Downloader::fetch(const std::string& url, bool hub, const fs::path& file, const Progress& progress) {
  const std::string address = public_address(url);
  const bool with_token = hub && !options_.token.empty();
  char text[CURL_ERROR_SIZE] = "";
  for (uint32_t fruitless = 0;;) {
    Transfer transfer(url, hub, file, progress, options_);
    aim(curl_.get(), url, with_token, options_.token);
    curl_easy_setopt(curl_.get(), CURLOPT_ERRORBUFFER, text);
    text[0] = '\0';
    const CURLcode code = transfer.perform(curl_.get());
    curl_easy_setopt(curl_.get(), CURLOPT_ERRORBUFFER, nullptr);
    const long status = transfer.response().status;
    if (code == CURLE_ABORTED_BY_CALLBACK && !transfer.stalled())
      throw PullError(kInterrupted, "interrupted; the same command goes on where this one stopped");
    if (code == CURLE_OK && transfer.complete()) return {transfer.have(), transfer.sha256()};
    if (code == CURLE_OK && status == 416) transfer.start_anew();  // longer than what is there now
    const bool again =
        passing(code, status) || transfer.stalled() || (code == CURLE_OK && status < 300) || status == 416;
    fruitless = transfer.progressed() ? 0 : fruitless + 1;
    if (again && options_.retries > 0 && fruitless <= options_.retries) {
      // 0.2 s, doubled up to 3.2 s; a signal ends the wait.
      const auto wait = std::chrono::milliseconds(100) * (1u << std::min(fruitless, 5u));
      for (auto end = Clock::now() + wait; Clock::now() < end;) {
        if (options_.interrupted && options_.interrupted()) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      continue;
    }
    if (code == CURLE_OK && status >= 300) fail_by_status(address, status, hub, with_token);
    std::string what = address + ": " +
                       (transfer.stalled() ? "nothing came for " + std::to_string(options_.timeout_seconds) + " s"
                        : text[0] != '\0'  ? text
                        : code == CURLE_OK ? "the file ended too early"
                                           : curl_easy_strerror(code));
    if (transfer.have() > 0) {
      what += "; " + std::to_string(transfer.have()) +
              (transfer.total() ? " of " + std::to_string(transfer.total()) : "") +
              " bytes are here, the same command goes on from there";
    }
    throw PullError(EX_UNAVAILABLE, what);
  }
}

}  // namespace ellm::pull
