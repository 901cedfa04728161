//! Vectors of exceptions (SDM vol. 3, table 6-1).

named! { u8;
    /// Divide error,
    DE = 0, "#DE";
    /// Debug exception,
    DB = 1, "#DB";
    /// Non-maskable interrupt,
    NMI = 2, "NMI";
    /// Breakpoint,
    BP = 3, "#BP";
    /// Overflow,
    OF = 4, "#OF";
    /// BOUND range exceeded,
    BR = 5, "#BR";
    /// Invalid opcode,
    UD = 6, "#UD";
    /// Device not available,
    NM = 7, "#NM";
    /// Double fault,
    DF = 8, "#DF";
    /// Invalid TSS,
    TS = 10, "#TS";
    /// Segment not present,
    NP = 11, "#NP";
    /// Stack-segment fault,
    SS = 12, "#SS";
    /// General protection,
    GP = 13, "#GP";
    /// Page fault,
    PF = 14, "#PF";
    /// x87 floating-point error,
    MF = 16, "#MF";
    /// Alignment check,
    AC = 17, "#AC";
    /// Machine check,
    MC = 18, "#MC";
    /// SIMD floating-point exception,
    XM = 19, "#XM";
    /// Virtualization exception,
    VE = 20, "#VE";
    /// Control protection,
    CP = 21, "#CP";
}
