#include "minka/driver/hosts.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "minka/base/file.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using testing::HasSubstr;

std::string ErrorOf(std::string_view json) {
  std::string token_file;
  return Message(HostsFromJson(json, token_file).status());
}

TEST(Hosts, AreReadWithTheirToken) {
  const std::string folder = testing::TempDir();
  ASSERT_TRUE(WriteFile(folder + "/token", "secret\nrest").ok());
  ASSERT_TRUE(WriteFile(folder + "/hosts.json",
                        R"({"token_file": "token", "workers": [
                              {"address": "10.0.0.1:7001", "num_devices": 4},
                              {"address": "10.0.0.2:7001", "num_devices": 2}]})")
                  .ok());
  const auto hosts = ReadHosts(folder + "/hosts.json");
  ASSERT_TRUE(hosts.ok()) << Message(hosts.status());
  EXPECT_EQ(hosts->token, "secret");
  ASSERT_EQ(hosts->workers.size(), 2u);
  EXPECT_EQ(hosts->workers[1].address, "10.0.0.2:7001");
  EXPECT_EQ(hosts->workers[1].num_devices, 2);

  ASSERT_TRUE(WriteFile(folder + "/token", "\n").ok());
  EXPECT_THAT(Message(ReadHosts(folder + "/hosts.json").status()), HasSubstr("is empty"));
  const std::string long_token(1025, 'x');
  for (const std::string& token :
       {std::string("caf\xc3\xa9"), std::string("secret\r"), long_token}) {
    ASSERT_TRUE(WriteFile(folder + "/token", token + "\n").ok());
    EXPECT_THAT(Message(ReadHosts(folder + "/hosts.json").status()),
                HasSubstr("the token, is not of up to 1024 printable ASCII characters"));
  }
}

TEST(Hosts, RefusalsNameTheField) {
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(ErrorOf(R"({"workers": []})"), HasSubstr("token_file is missing"));
  EXPECT_THAT(ErrorOf(R"({"token_file": "t", "workers": []})"), HasSubstr("workers is missing"));
  EXPECT_THAT(ErrorOf(R"({"token_file": "t", "hosts": []})"), HasSubstr("a field hosts"));
  EXPECT_THAT(ErrorOf(R"({"token_file": "t", "workers": [{"address": "a"}]})"),
              HasSubstr("workers[0].address"));
  EXPECT_THAT(ErrorOf(R"({"token_file": "t", "workers": [{"address": "a:1", "num_devices": 65}]})"),
              HasSubstr("workers[0].num_devices"));
  EXPECT_THAT(
      ErrorOf(R"({"token_file": "t", "workers": [{"address": "a:1", "num_devices": 2.5}]})"),
      HasSubstr("workers[0].num_devices"));
  EXPECT_THAT(ErrorOf(R"({"token_file": "t", "workers": [{"port": 1}]})"),
              HasSubstr("a field port"));
  EXPECT_EQ(ErrorOf(R"({"token_file": "t", "workers": [{"address": "a:1", "num_devices": 2},
                                                       {"address": "a:1", "num_devices": 2}]})"),
            "workers[0] and workers[1] are both a:1; a worker takes one mesh");
}

}  // namespace
}  // namespace minka
