// A plugin of FlashMQ that is asked about every message and does nothing: see benchmarks/peers.py.
#include "flashmq_plugin.h"

using Options = std::unordered_map<std::string, std::string>;
using Text = std::optional<std::string>;
using Pairs = std::vector<std::pair<std::string, std::string>>;
using Time = std::optional<std::chrono::time_point<std::chrono::steady_clock>>;

int flashmq_plugin_version() { return FLASHMQ_PLUGIN_VERSION; }
void flashmq_plugin_allocate_thread_memory(void **data, Options &) { *data = nullptr; }
void flashmq_plugin_deallocate_thread_memory(void *, Options &) {}
void flashmq_plugin_init(void *, Options &, bool) {}
void flashmq_plugin_deinit(void *, Options &, bool) {}

AuthResult flashmq_plugin_login_check(void *, const std::string &, const std::string &,
                                      const std::string &, const Pairs *,
                                      const std::weak_ptr<Client> &) {
    return AuthResult::success;
}

// Must be there, and is asked before each message and each delivery.
AuthResult flashmq_plugin_acl_check(void *, const AclAccess, const std::string &,
                                    const std::string &, const std::string &,
                                    const std::vector<std::string> &, const std::string &,
                                    std::string_view, const uint8_t, const bool, const Text &,
                                    const Text &, const Text &, const Time, const Pairs *) {
    return AuthResult::success;
}

bool flashmq_plugin_alter_publish(void *, const std::string &, std::string &,
                                  const std::vector<std::string> &, std::string_view, uint8_t &,
                                  bool &, Text &, Text &, Text &, Pairs *) {
    return false;
}
