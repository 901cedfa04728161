//! The multitasking kernel under the hypervisor, with each MMU.

use super::bare::kernels;
use crate::images::bare_guests;
use crate::run::kernel;
use crate::test::Group;

/// Modes of the hypervisor's MMU, with the names of tests for them.
pub const MMUS: [(&str, &str); 4] =
    [("shadow_nocache", "shadow-nocache"), ("shadow", "shadow"), ("legacy_tdp", "legacy-tdp"), ("tdp", "tdp")];

pub fn group() -> Group {
    let mut group = Group::new("hvm", 120);
    for (name, mmu) in MMUS {
        kernels(&mut group, &format!("_{name}"), move |run| run.words("--platform hvm --cpu skx --mmu").words(mmu));
    }
    let mut add = |name: String, target: &'static str, append: &'static str, options: String, pattern: &'static str| {
        group.add(format!("kernel_{target}_{name}"), move |bench| {
            bare_guests()?;
            bench.expect(&kernel(target, append).words("--platform hvm").words(&options), 1, pattern).map(drop)
        });
    };
    let pass = "^kernel: pass";
    for target in ["x86_64", "i386"] {
        let options = "--mmu shadow --mmu-pages 64 --cpu skx".to_owned();
        add("page_tables_shadow_few_pages".into(), target, "workload=stress seed=3 iterations=60000", options, pass);
    }
    for (name, wp) in [("role", "role"), ("unload", "unload"), ("guest_owned", "guest-owned")] {
        let append = "workload=ssdd groups=2 iterations=50 kernexec=1";
        add(format!("ssdd_tdp_cr0_wp_{name}"), "x86_64", append, format!("--mmu tdp --cr0-wp {wp}"), pass);
    }
    let plain = "--mmu shadow --cpu core2";
    for target in ["i386", "pae"] {
        let options = format!("{plain} --paravirt on");
        let user = format!("{options} --irqchip user");
        add("paravirtual_pingpong".into(), target, "iterations=200 paravirt=1", user.clone(), ", paravirtual,");
        add("paravirtual_page_tables".into(), target, "workload=stress iterations=20000 paravirt=1", options, pass);
        add("paravirtual_hackbench".into(), target, "workload=hackbench tasks=8 loops=20 paravirt=1", user, pass);
    }
    add("paravirt_is_not_offered".into(), "i386", "iterations=10 paravirt=1", plain.to_owned(), "i386, plain");
    group
}
