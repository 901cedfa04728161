//! The page in a browser, where one is installed: at the width of a phone and of a desk, in both colour schemes.

use super::page;
use crate::testing;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names under which a Chromium is installed.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
/// Widths of a phone and of a desk, in pixels.
const WIDTHS: [u32; 2] = [390, 1280];

/// Notes what a reader without scripts sees; it stands before the page's script.
const BEFORE: &str = r#"<script>
const shape = (root) => JSON.stringify([...root.querySelectorAll("*")].map((e) => [e.tagName, e.getAttribute("class"), (e.getAttribute("style") || "").replace(/\.0%/g, "%"), e.getAttribute("title"), e.getAttribute("data-key"), e.children.length ? "" : e.textContent]));
const parts = () => [document.querySelector(".graph .flame"), document.querySelector(".all tbody")];
const seen = [...parts(), document.querySelector("article .waterfall")].map(shape);
</script>
"#;

/// Compares that with what the script made of it, uses everything that can be used, and tells the frame around the page what it found.
const AFTER: &str = r#"<script>
const drawn = [...parts(), document.querySelector(".chosen .waterfall")].map(shape);
const found = { same: drawn.map((made, at) => made === seen[at]), links: document.querySelectorAll(".full:not([hidden])").length };
for (const button of document.querySelectorAll(".all thead button")) { button.click(); button.click(); }
const search = document.querySelector("input[type=search]");
search.value = "load_cr3";
search.dispatchEvent(new Event("input", { bubbles: true }));
found.searched = [...document.querySelectorAll(".all tbody tr:not([hidden])")].every((row) => row.textContent.includes("load_cr3"));
const graph = document.querySelector(".flame");
graph.children[1].click();
for (const key of ["ArrowDown", "ArrowRight", "ArrowLeft", "ArrowUp", "Enter", "Escape"]) graph.dispatchEvent(new KeyboardEvent("keydown", { key }));
for (const select of document.querySelectorAll("select")) for (const option of select.options) { select.value = option.value; select.dispatchEvent(new Event("change")); }
for (const one of document.querySelectorAll("details")) one.open = true;
document.querySelector(".full a").click();
found.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
found.width = innerWidth;
found.dark = matchMedia("(prefers-color-scheme: dark)").matches;
parent.postMessage(JSON.stringify(found), "*");
</script>
"#;

/// The frame: a window of a browser has a least width, a frame does not.
fn frame(page: &Path, width: u32) -> String {
    format!(
        "<!doctype html><title>frame</title><body style=\"margin:0\"><iframe src=\"file://{}\" width=\"{width}\" height=\"900\" \
         style=\"border:0\"></iframe><pre></pre><script>onmessage = (event) => {{ document.querySelector('pre').textContent = \
         event.data }}</script>",
        page.display()
    )
}

#[test]
fn the_page_fits_its_window_and_its_script_makes_no_error() {
    let runs = |name: &&&str| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    let Some(browser) = BROWSERS.iter().find(runs) else {
        eprintln!("skipped: none of {} is installed", BROWSERS.join(", "));
        return;
    };
    let directory = std::env::temp_dir().join(format!("tollgate-page-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (experiment, result) = testing::results(4);
    let page = page::html(&[experiment], &[result], None).unwrap();
    let (head, script) = page.rsplit_once("<script>").unwrap();
    let page = format!("{head}{BEFORE}<script>{script}").replace("</body>", &format!("{AFTER}</body>"));
    std::fs::write(directory.join("page.html"), page).unwrap();
    for width in WIDTHS {
        std::fs::write(directory.join("frame.html"), frame(&directory.join("page.html"), width)).unwrap();
        for (scheme, dark) in [("0", "true"), ("1", "false")] {
            let output = Command::new(browser)
                .args([
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--no-first-run",
                    "--enable-logging=stderr",
                    "--dump-dom",
                ])
                .arg("--virtual-time-budget=10000")
                .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
                .arg(format!("--window-size={},900", width.max(800)))
                .arg(format!("--user-data-dir={}", directory.join("profile").display()))
                .arg(directory.join("frame.html"))
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let errors: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
            assert!(errors.is_empty(), "{width}: {errors:?}");
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            let found = shown.split("<pre>").nth(1).and_then(|rest| rest.split("</pre>").next()).unwrap_or_default();
            let wanted = format!(
                "{{\"same\":[true,true,true],\"links\":1,\"searched\":true,\"wide\":0,\"width\":{width},\"dark\":{dark}}}"
            );
            assert_eq!(found, wanted, "{shown}{said}");
        }
    }
    std::fs::remove_dir_all(directory).unwrap();
}
