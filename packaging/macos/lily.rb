# A Homebrew formula. Homebrew takes none but from a tap; in a checkout:
#
#   brew tap-new lily/local
#   cp packaging/macos/lily.rb "$(brew --repository lily/local)/Formula/"
#   HOMEBREW_LILY_CHECKOUT=$PWD brew install --HEAD lily/local/lily
class Lily < Formula
  desc "Local inference engine for Qwen3.6-35B-A3B"
  homepage "https://example.invalid/lily"
  license any_of: ["Apache-2.0", "MIT"]
  head "file://#{ENV.fetch("HOMEBREW_LILY_CHECKOUT", "/no/checkout")}", using: :git, branch: "main"

  depends_on "rust" => :build
  depends_on arch: :arm64
  depends_on macos: :sonoma

  def install
    system "cargo", "install", *std_cargo_args(path: "crates/lily")
  end

  service do
    run [opt_bin/"lily", "serve"]
    keep_alive crashed: true
    log_path var/"log/lily.log"
    error_log_path var/"log/lily.log"
  end

  test do
    assert_match "metal", shell_output("#{bin}/lily doctor")
  end
end
