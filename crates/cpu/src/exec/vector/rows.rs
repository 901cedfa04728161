//! Instruction table rows of vector instructions.

use crate::exec::vector::{approximate, bind, gather, mask, misc, moves, sha};
use crate::row::{Row, Treatment};
use iced_x86::Mnemonic::*;
use ledger::Class;

/// Creates rows of one class and binder, in groups of one treatment each.
macro_rules! rows {
    ($class:ident, $bind:path; $($treatment:ident: $($mnemonic:ident)*);*) => {
        &[$($(Row::new($mnemonic, Class::$class, $bind).treated(Treatment::$treatment)),*),*]
    };
}
pub(super) use rows;

/// Moves that need no arithmetic.
pub static MOVES: &[Row] = rows! {
    Vector, moves::bind;
    Vector:
    Movaps Movapd Movdqa Movntps Movntpd Movntdq Movntdqa Movups Movupd Movdqu Lddqu Vmovaps Vmovapd Vmovdqa
    Vmovntps Vmovntpd Vmovntdq Vmovntdqa Vmovups Vmovupd Vmovdqu Vlddqu Movd Movq Vmovd Vmovq Movss Vmovss Vmovsd
};

/// Integer, logic and shuffle instructions in MMX and SSE encodings.
pub static INTEGER: &[Row] = rows! {
    Vector, bind::integer;
    Vector:
    Andnpd Andnps Andpd Andps Blendpd Blendps Blendvpd Blendvps Extractps Insertps Movddup Movdq2q Movhlps Movhpd
    Movhps Movlhps Movlpd Movlps Movmskpd Movmskps Movntq Movq2dq Movshdup Movsldup Mpsadbw Orpd Orps Pabsb Pabsd
    Pabsw Packssdw Packsswb Packusdw Packuswb Paddb Paddd Paddq Paddsb Paddsw Paddusb Paddusw Paddw Palignr Pand
    Pandn Pavgb Pavgw Pblendvb Pblendw Pcmpeqb Pcmpeqd Pcmpeqq Pcmpeqw Pcmpgtb Pcmpgtd Pcmpgtq Pcmpgtw Pextrb Pextrd
    Pextrq Pextrw Phaddd Phaddsw Phaddw Phminposuw Phsubd Phsubsw Phsubw Pinsrb Pinsrd Pinsrq Pinsrw Pmaddubsw
    Pmaddwd Pmaxsb Pmaxsd Pmaxsw Pmaxub Pmaxud Pmaxuw Pminsb Pminsd Pminsw Pminub Pminud Pminuw Pmovmskb Pmovsxbd
    Pmovsxbq Pmovsxbw Pmovsxdq Pmovsxwd Pmovsxwq Pmovzxbd Pmovzxbq Pmovzxbw Pmovzxdq Pmovzxwd Pmovzxwq Pmuldq
    Pmulhrsw Pmulhuw Pmulhw Pmulld Pmullw Pmuludq Por Psadbw Pshufb Pshufd Pshufhw Pshuflw Pshufw Psignb Psignd
    Psignw Pslld Pslldq Psllq Psllw Psrad Psraw Psrld Psrldq Psrlq Psrlw Psubb Psubd Psubq Psubsb Psubsw Psubusb
    Psubusw Psubw Ptest Punpckhbw Punpckhdq Punpckhqdq Punpckhwd Punpcklbw Punpckldq Punpcklqdq Punpcklwd Pxor
    Shufpd Shufps Unpckhpd Unpckhps Unpcklpd Unpcklps Xorpd Xorps;
    // These have implicit operands.
    Handler:
    Pcmpestri Pcmpestri64 Pcmpestrm Pcmpestrm64 Pcmpistri Pcmpistrm
};

/// Integer, logic and shuffle instructions in VEX encodings.
pub static VEX_INTEGER: &[Row] = rows! {
    Vector, bind::integer;
    Vector:
    Vandnpd Vandnps Vandpd Vandps Vblendpd Vblendps Vblendvpd Vblendvps Vbroadcastf128 Vbroadcasti128 Vbroadcastsd
    Vbroadcastss Vextractf128 Vextracti128 Vextractps Vinsertf128 Vinserti128 Vinsertps Vmovddup Vmovhlps Vmovhpd
    Vmovhps Vmovlhps Vmovlpd Vmovlps Vmovmskpd Vmovmskps Vmovshdup Vmovsldup Vmpsadbw Vorpd Vorps Vpabsb Vpabsd
    Vpabsw Vpackssdw Vpacksswb Vpackusdw Vpackuswb Vpaddb Vpaddd Vpaddq Vpaddsb Vpaddsw Vpaddusb Vpaddusw Vpaddw
    Vpalignr Vpand Vpandn Vpavgb Vpavgw Vpblendd Vpblendvb Vpblendw Vpbroadcastb Vpbroadcastd Vpbroadcastq
    Vpbroadcastw Vpcmpeqb Vpcmpeqd Vpcmpeqq Vpcmpeqw Vpcmpgtb Vpcmpgtd Vpcmpgtq Vpcmpgtw Vperm2f128 Vperm2i128
    Vpermd Vpermilpd Vpermilps Vpermpd Vpermps Vpermq Vpextrb Vpextrd Vpextrq Vpextrw Vphaddd Vphaddsw Vphaddw
    Vphminposuw Vphsubd Vphsubsw Vphsubw Vpinsrb Vpinsrd Vpinsrq Vpinsrw Vpmaddubsw Vpmaddwd Vpmaxsb Vpmaxsd Vpmaxsw
    Vpmaxub Vpmaxud Vpmaxuw Vpminsb Vpminsd Vpminsw Vpminub Vpminud Vpminuw Vpmovmskb Vpmovsxbd Vpmovsxbq Vpmovsxbw
    Vpmovsxdq Vpmovsxwd Vpmovsxwq Vpmovzxbd Vpmovzxbq Vpmovzxbw Vpmovzxdq Vpmovzxwd Vpmovzxwq Vpmuldq Vpmulhrsw
    Vpmulhuw Vpmulhw Vpmulld Vpmullw Vpmuludq Vpor Vpsadbw Vpshufb Vpshufd Vpshufhw Vpshuflw Vpsignb Vpsignd Vpsignw
    Vpslld Vpslldq Vpsllq Vpsllvd Vpsllvq Vpsllw Vpsrad Vpsravd Vpsraw Vpsrld Vpsrldq Vpsrlq Vpsrlvd Vpsrlvq Vpsrlw
    Vpsubb Vpsubd Vpsubq Vpsubsb Vpsubsw Vpsubusb Vpsubusw Vpsubw Vptest Vpunpckhbw Vpunpckhdq Vpunpckhqdq
    Vpunpckhwd Vpunpcklbw Vpunpckldq Vpunpcklqdq Vpunpcklwd Vpxor Vshufpd Vshufps Vtestpd Vtestps Vunpckhpd
    Vunpckhps Vunpcklpd Vunpcklps Vxorpd Vxorps;
    // These have implicit operands.
    Handler:
    Vpcmpestri Vpcmpestri64 Vpcmpestrm Vpcmpestrm64 Vpcmpistri Vpcmpistrm
};

/// Floating-point arithmetic in SSE encodings, except division and square root.
pub static FLOAT: &[Row] = rows! {
    VectorFp, bind::float;
    Vector:
    Addpd Addps Addsd Addss Addsubpd Addsubps Cmppd Cmpps Cmpss Comisd Comiss Cvtdq2pd Cvtdq2ps Cvtpd2dq Cvtpd2pi
    Cvtpd2ps Cvtpi2pd Cvtpi2ps Cvtps2dq Cvtps2pd Cvtps2pi Cvtsd2si Cvtsd2ss Cvtsi2sd Cvtsi2ss Cvtss2sd Cvtss2si
    Cvttpd2dq Cvttpd2pi Cvttps2dq Cvttps2pi Cvttsd2si Cvttss2si Dppd Dpps Haddpd Haddps Hsubpd Hsubps Maxpd Maxps
    Maxsd Maxss Minpd Minps Minsd Minss Mulpd Mulps Mulsd Mulss Roundpd Roundps Roundsd Roundss Subpd Subps Subsd
    Subss Ucomisd Ucomiss
};

/// Floating-point arithmetic in VEX encodings, except division and square root.
pub static VEX_FLOAT: &[Row] = rows! {
    VectorFp, bind::float;
    Vector:
    Vaddpd Vaddps Vaddsd Vaddss Vaddsubpd Vaddsubps Vcmppd Vcmpps Vcmpsd Vcmpss Vcomisd Vcomiss Vcvtdq2pd Vcvtdq2ps
    Vcvtpd2dq Vcvtpd2ps Vcvtph2ps Vcvtps2dq Vcvtps2pd Vcvtps2ph Vcvtsd2si Vcvtsd2ss Vcvtsi2sd Vcvtsi2ss Vcvtss2sd
    Vcvtss2si Vcvttpd2dq Vcvttps2dq Vcvttsd2si Vcvttss2si Vdppd Vdpps Vfmadd132pd Vfmadd132ps Vfmadd132sd
    Vfmadd132ss Vfmadd213pd Vfmadd213ps Vfmadd213sd Vfmadd213ss Vfmadd231pd Vfmadd231ps Vfmadd231sd Vfmadd231ss
    Vfmaddsub132pd Vfmaddsub132ps Vfmaddsub213pd Vfmaddsub213ps Vfmaddsub231pd Vfmaddsub231ps Vfmsub132pd
    Vfmsub132ps Vfmsub132sd Vfmsub132ss Vfmsub213pd Vfmsub213ps Vfmsub213sd Vfmsub213ss Vfmsub231pd Vfmsub231ps
    Vfmsub231sd Vfmsub231ss Vfmsubadd132pd Vfmsubadd132ps Vfmsubadd213pd Vfmsubadd213ps Vfmsubadd231pd
    Vfmsubadd231ps Vfnmadd132pd Vfnmadd132ps Vfnmadd132sd Vfnmadd132ss Vfnmadd213pd Vfnmadd213ps Vfnmadd213sd
    Vfnmadd213ss Vfnmadd231pd Vfnmadd231ps Vfnmadd231sd Vfnmadd231ss Vfnmsub132pd Vfnmsub132ps Vfnmsub132sd
    Vfnmsub132ss Vfnmsub213pd Vfnmsub213ps Vfnmsub213sd Vfnmsub213ss Vfnmsub231pd Vfnmsub231ps Vfnmsub231sd
    Vfnmsub231ss Vhaddpd Vhaddps Vhsubpd Vhsubps Vmaxpd Vmaxps Vmaxsd Vmaxss Vminpd Vminps Vminsd Vminss Vmulpd
    Vmulps Vmulsd Vmulss Vroundpd Vroundps Vroundsd Vroundss Vsubpd Vsubps Vsubsd Vsubss Vucomisd Vucomiss
};

/// Division and square root.
pub static DIVISION: &[Row] = rows! {
    VectorDiv, bind::float;
    Vector:
    Divpd Divps Divsd Divss Sqrtpd Sqrtps Sqrtsd Sqrtss Vdivpd Vdivps Vdivsd Vdivss Vsqrtpd Vsqrtps Vsqrtsd Vsqrtss
};

/// AES and carry-less multiplication.
pub static CRYPTO: &[Row] = rows! {
    Crypto, bind::integer;
    Vector:
    Aesdec Aesdeclast Aesenc Aesenclast Aesimc Aeskeygenassist Pclmulqdq Vaesdec Vaesdeclast Vaesenc Vaesenclast
    Vaesimc Vaeskeygenassist Vpclmulqdq
};

/// SHA, which some x86-64-v3 hosts lack.
pub static SHA: &[Row] = rows! {
    Crypto, sha::bind;
    Handler:
    Sha1msg1 Sha1msg2 Sha1nexte Sha1rnds4 Sha256msg1 Sha256msg2 Sha256rnds2
};

/// Reciprocal approximations, which differ between hosts.
pub static APPROXIMATE: &[Row] = rows! {
    VectorFp, approximate::bind;
    Handler:
    Rcpps Rcpss Rsqrtps Rsqrtss Vrcpps Vrcpss Vrsqrtps Vrsqrtss
};

/// Masked moves.
pub static MASKED: &[Row] = rows! {
    Vector, mask::bind;
    Handler:
    Maskmovq Maskmovdqu Vmaskmovdqu Vmaskmovps Vmaskmovpd Vpmaskmovd Vpmaskmovq
};

/// Gathers.
pub static GATHERS: &[Row] = rows! {
    Vector, gather::bind;
    Handler:
    Vgatherdpd Vgatherdps Vgatherqpd Vgatherqps Vpgatherdd Vpgatherdq Vpgatherqd Vpgatherqq
};

/// Control and state of the vector units.
pub static CONTROL: &[Row] = rows! {
    Vector, misc::bind;
    Vector:
    Vzeroupper Vzeroall;
    // These access the unit's other state.
    Handler:
    Ldmxcsr Stmxcsr Vldmxcsr Vstmxcsr Emms
};
