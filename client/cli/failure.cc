// The one place where errors become exit codes.
#include "client/cli/failure.h"

#include <new>

#include "client/cli/output.h"
#include "client/errors.h"
#include "daemon/format/chat_template.h"
#include "daemon/format/gguf.h"

namespace ellm::cli {
namespace {

constexpr ExitMeaning kMeanings[] = {
    {kOk, "It worked."},
    {kUsage, "Wrong options or values."},
    {kData, "Wrong contents: a damaged or unsupported file, ids that are none, a template that refuses the messages."},
    {kNoInput, "There is no such file or model, or nothing came on stdin."},
    {kUnavailable, "There is no daemon, or it went away."},
    {kInternal, "An error of the program itself."},
    {kOutput, "The output cannot be written."},
    {kBusy, "The daemon is busy or ends, or the deadline has passed: try again later."},
    {kProtocol, "Program and daemon do not understand each other: install the same release of both."},
    {kDenied, "Permission denied."},
    {kInterrupted, "Ctrl-C, or the request was cancelled."},
    {kPipeClosed, "Nobody reads the output any more (a program that SIGPIPE ends)."},
};

ExitCode exit_code(client::ErrorCode code) {
  using client::ErrorCode;
  switch (code) {
    case ErrorCode::bad_request: return kUsage;
    case ErrorCode::unknown_message:
    case ErrorCode::unsupported_version: return kProtocol;
    case ErrorCode::too_large:
    case ErrorCode::model_failed:
    case ErrorCode::template_failed: return kData;
    case ErrorCode::no_such_model: return kNoInput;
    case ErrorCode::busy:
    case ErrorCode::shutting_down:
    case ErrorCode::deadline: return kBusy;
    case ErrorCode::cancelled: return kInterrupted;
    case ErrorCode::denied: return kDenied;
    case ErrorCode::no_such_request:
    case ErrorCode::internal: break;
  }
  return kInternal;
}

ExitCode exit_code(client::ConnectionError::Kind kind) {
  using Kind = client::ConnectionError::Kind;
  return kind == Kind::denied ? kDenied : kind == Kind::protocol ? kProtocol : kUnavailable;
}

std::string describe(const client::ClientError& error) {
  std::string text = error.what();
  if (text.empty()) text = client::name_of(error.code());
  if (error.code() == client::ErrorCode::no_such_model && text.find("ellm pull") == std::string::npos)
    text += " (`ellm pull` fetches models)";
  if (error.retry_after_ms() > 0) text += format(" (try again in %.1f s)", error.retry_after_ms() / 1000.0);
  return text;
}

int report(ExitCode code, const std::string& message) {
  write_error(message);
  return code;
}

}  // namespace

std::span<const ExitMeaning> exit_meanings() { return kMeanings; }

int report_failure() {
  try {
    throw;
  } catch (const Exit& exit) {
    return exit.code;
  } catch (const OutputClosed&) {
    return kPipeClosed;
  } catch (const Failure& failure) {
    return report(failure.code(), failure.what());
  } catch (const client::ClientError& error) {
    return report(exit_code(error.code()), describe(error));
  } catch (const client::ConnectionError& error) {
    return report(exit_code(error.kind()), error.what());
  } catch (const format::FormatError& error) {
    return report(kData, error.what());
  } catch (const format::TemplateError& error) {
    return report(kData, error.what());
  } catch (const std::bad_alloc&) {
    return report(kInternal, "out of memory");
  } catch (const std::exception& error) {
    return report(kInternal, error.what());
  }
}

}  // namespace ellm::cli
