#include "redis/redis_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "redis/redis_rig.h"
#include "terrace/check.h"

namespace terrace::testing {

std::string FindProgram(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream directories(std::string(path == nullptr ? "" : path) + ":/usr/bin:/usr/sbin");
  std::string directory;
  while (std::getline(directories, directory, ':')) {
    std::string candidate = directory + "/" + name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

uint16_t FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  TERRACE_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0,
                "no free port");
  close(fd);
  return ntohs(address.sin_port);
}

void FreeRedisReply::operator()(redisReply* reply) const { freeReplyObject(reply); }

std::unique_ptr<RawRedis> RawRedis::Connect(const RedisEndpoint& endpoint) {
  redisContext* const context = endpoint.unix_path.empty()
                                    ? redisConnect(endpoint.host.c_str(), endpoint.port)
                                    : redisConnectUnix(endpoint.unix_path.c_str());
  if (context == nullptr || context->err != 0) {
    if (context != nullptr) redisFree(context);
    return nullptr;
  }
  return std::unique_ptr<RawRedis>(new RawRedis(context));
}

RawRedis::~RawRedis() { redisFree(context_); }

RawReply RawRedis::Command(const std::vector<std::string>& words) {
  std::vector<const char*> pointers;
  std::vector<size_t> lengths;
  for (const std::string& word : words) {
    pointers.push_back(word.data());
    lengths.push_back(word.size());
  }
  return RawReply(static_cast<redisReply*>(
      redisCommandArgv(context_, static_cast<int>(words.size()), pointers.data(), lengths.data())));
}

long long RawRedis::Integer(const std::vector<std::string>& words) {
  const RawReply reply = Command(words);
  TERRACE_CHECK(reply != nullptr && reply->type == REDIS_REPLY_INTEGER, "not a number");
  return reply->integer;
}

std::string RawRedis::Text(const std::vector<std::string>& words) {
  const RawReply reply = Command(words);
  if (reply == nullptr || reply->str == nullptr) return "";
  return {reply->str, static_cast<size_t>(reply->len)};
}

uint64_t RawRedis::ErrorsAnswered(const std::string& word) {
  const std::string stats = Text({"INFO", "errorstats"});
  const std::string field = "errorstat_" + word + ":count=";
  const size_t at = stats.find(field);
  return at == std::string::npos ? 0 : std::stoull(stats.substr(at + field.size()));
}

std::vector<std::string> RawRedis::Keys() {
  const RawReply reply = Command({"KEYS", "*"});
  TERRACE_CHECK(reply != nullptr && reply->type == REDIS_REPLY_ARRAY, "no list of keys");
  std::vector<std::string> keys;
  for (size_t i = 0; i < reply->elements; ++i) {
    keys.emplace_back(reply->element[i]->str, static_cast<size_t>(reply->element[i]->len));
  }
  return keys;
}

std::vector<std::string> RawRedis::BlockKeys() {
  std::vector<std::string> keys = Keys();
  std::erase_if(keys, [](const std::string& key) { return key.ends_with("}g"); });
  return keys;
}

void RawRedis::SayNoGeneration() {
  const GroupId group = RedisTestName(1, 0).group;
  Command({"SET", RedisTestGenerationKey(group), RedisTestGeneration(group, 0)});
}

RedisProcess::RedisProcess(Options options) : options_(std::move(options)) {
  char name[] = "/tmp/terrace_redis_XXXXXX";
  TERRACE_CHECK(mkdtemp(name) != nullptr, "no directory for a Redis server");
  directory_ = name;
  port_ = options_.port != 0 ? options_.port : FreePort();
  Start();
}

RedisProcess::~RedisProcess() {
  Kill();
  std::filesystem::remove_all(directory_);
}

std::unique_ptr<RawRedis> RedisProcess::Connect() const {
  std::unique_ptr<RawRedis> raw = RawRedis::Connect(unix_endpoint());
  if (raw == nullptr || options_.password.empty()) return raw;
  raw->Command({"AUTH", options_.user.empty() ? "default" : options_.user, options_.password});
  return raw;
}

void RedisProcess::Start() {
  TERRACE_CHECK(pid_ < 0, "it runs already");
  std::vector<std::string> words = {FindProgram(options_.program)};
  if (!options_.config.empty()) {
    const std::string file = directory_ + "/redis.conf";
    std::ofstream(file) << options_.config << "\n";
    words.push_back(file);
  }
  for (const char* const word : {"--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                                 "--daemonize", "no", "--repl-diskless-sync-delay", "0"}) {
    words.emplace_back(word);
  }
  words.insert(words.end(),
               {"--port", std::to_string(port_), "--unixsocket", directory_ + "/socket", "--dir",
                directory_, "--logfile", directory_ + "/log"});
  words.insert(words.end(), options_.arguments.begin(), options_.arguments.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_ = fork();
  TERRACE_CHECK(pid_ >= 0, "no process for a Redis server");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = open("/dev/null", O_RDWR);
    dup2(null, 1);
    dup2(null, 2);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  for (int i = 0; options_.waits_until_ready && i < 6000; ++i) {
    const std::unique_ptr<RawRedis> raw = Connect();
    if (raw != nullptr && raw->Text({"PING"}) == "PONG") return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  TERRACE_CHECK(!options_.waits_until_ready, "a Redis server does not come up in a minute");
}

void RedisProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void RedisProcess::Pause() { kill(pid_, SIGSTOP); }
void RedisProcess::Resume() { kill(pid_, SIGCONT); }

}  // namespace terrace::testing
