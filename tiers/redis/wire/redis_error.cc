#include "tiers/redis/wire/redis_error.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>

#include "tiers/redis/wire/redis_slot.h"

namespace terrace {
namespace {

struct ErrorWord {
  std::string_view word;
  RedisError error;
  std::string_view name;
};

constexpr std::array kWords = {
    ErrorWord{"OOM", RedisError::kOutOfMemory, "out of memory"},
    ErrorWord{"READONLY", RedisError::kReadOnly, "read only"},
    ErrorWord{"MISCONF", RedisError::kMisconfigured, "cannot persist"},
    ErrorWord{"NOREPLICAS", RedisError::kNoReplicas, "too few replicas"},
    ErrorWord{"LOADING", RedisError::kLoading, "loading"},
    ErrorWord{"BUSY", RedisError::kBusyScript, "busy with a script"},
    ErrorWord{"CLUSTERDOWN", RedisError::kClusterDown, "cluster down"},
    ErrorWord{"TRYAGAIN", RedisError::kTryAgain, "slot on its way"},
    ErrorWord{"MASTERDOWN", RedisError::kMasterDown, "master down"},
    ErrorWord{"NOAUTH", RedisError::kNoAuth, "no authentication"},
    ErrorWord{"WRONGPASS", RedisError::kWrongPassword, "wrong password"},
    ErrorWord{"NOPERM", RedisError::kNoPermission, "no permission"},
    ErrorWord{"MOVED", RedisError::kMoved, "moved"},
    ErrorWord{"ASK", RedisError::kAsk, "ask"},
    ErrorWord{"CROSSSLOT", RedisError::kCrossSlot, "keys of two slots"},
    ErrorWord{"WRONGTYPE", RedisError::kWrongType, "wrong type"},
};

std::string_view TakeWord(std::string_view* text) {
  const size_t space = text->find(' ');
  const std::string_view word = text->substr(0, space);
  text->remove_prefix(space == std::string_view::npos ? text->size() : space + 1);
  return word;
}

RedisError ErrorOfWord(std::string_view word) {
  const auto known = std::ranges::find(kWords, word, &ErrorWord::word);
  return known == kWords.end() ? RedisError::kOther : known->error;
}

template <typename Number>
bool ParseNumber(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// Of a command inside a script: from 7 on the server passes its word on, but for a permission;
// before, it quotes all of it.
RedisError ClassifyScriptError(std::string_view text) {
  if (text.starts_with("The user executing the script can't run this command") ||
      text.starts_with("ACL failure in script")) {
    return RedisError::kNoPermissionInScript;
  }
  const size_t quoted = text.find(": -");
  if (!text.starts_with("Error running script") || quoted == std::string_view::npos) {
    return RedisError::kOther;
  }
  text.remove_prefix(quoted + 3);
  return ErrorOfWord(TakeWord(&text));
}

}  // namespace

RedisError ClassifyRedisError(std::string_view text) {
  const std::string_view word = TakeWord(&text);
  // Of the EXEC itself: "EXECABORT Transaction discarded because of: NOPERM …"
  constexpr std::string_view kDiscarded = "Transaction discarded because of: ";
  if (word == "EXECABORT" && text.starts_with(kDiscarded)) {
    std::string_view cause = text.substr(kDiscarded.size());
    return ErrorOfWord(TakeWord(&cause));
  }
  if (const RedisError known = ErrorOfWord(word); known != RedisError::kOther) return known;
  // Servers before 6 have no word of its own for these.
  if (word == "ERR" && text.starts_with("invalid password")) return RedisError::kWrongPassword;
  if (word == "ERR" && text.starts_with("operation not permitted")) return RedisError::kNoAuth;
  // A password for a server that wants none: whoever configured this meant another server.
  if (word == "ERR" && text.starts_with("AUTH ")) return RedisError::kWrongPassword;
  if (word == "ERR" && text.starts_with("wrong number of arguments")) {
    return RedisError::kWrongArguments;
  }
  if (word == "ERR" && text.starts_with("unknown command")) return RedisError::kUnknownCommand;
  if (word == "ERR") return ClassifyScriptError(text);
  return RedisError::kOther;
}

std::string FirstWordsOf(std::string_view text) {
  const auto is_letter = [text](size_t at) {
    return at < text.size() && std::isalpha(static_cast<unsigned char>(text[at])) != 0;
  };
  size_t end = 0;
  for (; end < text.size(); ++end) {
    const char c = text[end];
    if (c < ' ' || c > '~' || c == '"' || c == '`') break;
    if (c == '\'' && !(end > 0 && is_letter(end - 1) && is_letter(end + 1))) break;  // but "can't"
    if (c == '.' && end + 1 < text.size() && text[end + 1] == ' ') break;
  }
  if (end > kRedisSaidBytesMax) {
    const size_t space = text.rfind(' ', kRedisSaidBytesMax);
    end = space == std::string_view::npos ? kRedisSaidBytesMax : space;
  }
  while (end > 0 && std::string_view(" .,:;(").find(text[end - 1]) != std::string_view::npos) --end;
  return std::string(text.substr(0, end));
}

std::string RedisTroubleText(Status status, std::string_view said) {
  std::string text = status.what();
  if (status.code() == StatusCode::kIo && status.detail() > 0) {
    text.append(": ").append(std::strerror(status.detail()));
  }
  if (!said.empty()) text.append(" (it says: ").append(said).append(")");
  return text;
}

std::string_view RedisErrorName(RedisError error) {
  if (error == RedisError::kNone) return "none";
  if (error == RedisError::kTooLong) return "value too long";
  if (error == RedisError::kWrongArguments) return "wrong number of arguments";
  if (error == RedisError::kUnknownCommand) return "unknown command";
  if (error == RedisError::kNoPermissionInScript) return "no permission in a script";
  if (error == RedisError::kNoPermissionToWrite) return "no permission to write";
  for (const ErrorWord& known : kWords) {
    if (known.error == error) return known.name;
  }
  return "other";
}

bool IsHardRedisError(RedisError error) {
  return error == RedisError::kNoAuth || error == RedisError::kWrongPassword ||
         error == RedisError::kNoPermission;
}

bool IsWriteRefusal(RedisError error) {
  return error == RedisError::kOutOfMemory || error == RedisError::kReadOnly ||
         error == RedisError::kMisconfigured || error == RedisError::kNoReplicas ||
         IsWriteDenial(error);
}

bool IsWriteDenial(RedisError error) {
  return error == RedisError::kNoPermissionInScript || error == RedisError::kNoPermissionToWrite;
}

bool IsSoftRedisError(RedisError error) {
  return error == RedisError::kLoading || error == RedisError::kBusyScript ||
         error == RedisError::kClusterDown || error == RedisError::kMasterDown;
}

bool IsRedirect(RedisError error) {
  return error == RedisError::kMoved || error == RedisError::kAsk;
}

bool IsForeignRedisValue(RedisError error) {
  return error == RedisError::kWrongType || error == RedisError::kTooLong;
}

Status StatusOfRedisError(RedisError error) {
  switch (error) {
    case RedisError::kNone:
      return Status::Ok();
    case RedisError::kOutOfMemory:
      return Status(StatusCode::kNoSpace, "the Redis server is full and evicts nothing");
    case RedisError::kReadOnly:
      return Status(StatusCode::kNoSpace,
                    "the Redis server takes no writes now: it is a replica (READONLY)");
    case RedisError::kMisconfigured:
      return Status(StatusCode::kNoSpace,
                    "the Redis server takes no writes now: it cannot save to its disk (MISCONF)");
    case RedisError::kNoReplicas:
      return Status(StatusCode::kNoSpace,
                    "the Redis server takes no writes now: it has too few replicas (NOREPLICAS), "
                    "and who comes late is told nothing");
    case RedisError::kNoPermissionInScript:
      return Status(StatusCode::kNoSpace,
                    "the Redis server's ACL lets this user run scripts, and not all that is in "
                    "them (docs/REDIS_FORMAT.md lists it)");
    case RedisError::kNoPermissionToWrite:
      return Status(StatusCode::kNoSpace, "the Redis server's ACL does not let this user write");
    case RedisError::kNoAuth:
    case RedisError::kWrongPassword:
    case RedisError::kNoPermission:
      return Status(StatusCode::kUnsupported, "the Redis server refuses this user");
    case RedisError::kWrongType:
    case RedisError::kTooLong:
      return Status(StatusCode::kCorrupt, "a Redis key holds something else");
    default:
      return Status(StatusCode::kBusy, "the Redis server cannot answer now");
  }
}

Result<RedisRedirect> ParseRedisRedirect(std::string_view text) {
  const Status refused(StatusCode::kCorrupt, "not a redirection");
  const std::string_view word = TakeWord(&text);
  if (word != "MOVED" && word != "ASK") return refused;
  RedisRedirect redirect;
  if (!ParseNumber(TakeWord(&text), &redirect.slot) || redirect.slot >= kRedisSlotCount) {
    return refused;
  }
  const std::string_view address = TakeWord(&text);
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return refused;
  if (!ParseNumber(address.substr(colon + 1), &redirect.port) || redirect.port == 0) {
    return refused;
  }
  redirect.host = address.substr(0, colon);
  return redirect;
}

}  // namespace terrace
