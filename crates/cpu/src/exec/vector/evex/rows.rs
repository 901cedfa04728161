//! Instruction table rows of mnemonics that exist only in EVEX encoding, and of instructions on opmasks.

use super::{gather, opmask, select};
use crate::exec::vector::bind;
use crate::exec::vector::rows::rows;
use crate::row::{Row, Treatment};
use iced_x86::Mnemonic::*;
use ledger::Class;

/// Moves, broadcasts, conversions between widths, compress and expand.
pub static MOVES: &[Row] = rows! {
    Vector, select::integer;
    Vector:
    Vblendmpd Vblendmps Vbroadcastf32x2 Vbroadcastf32x4 Vbroadcastf32x8 Vbroadcastf64x2 Vbroadcastf64x4
    Vbroadcasti32x2 Vbroadcasti32x4 Vbroadcasti32x8 Vbroadcasti64x2 Vbroadcasti64x4 Vcompresspd Vcompressps
    Vexpandpd Vexpandps Vextractf32x4 Vextractf32x8 Vextractf64x2 Vextractf64x4 Vextracti32x4 Vextracti32x8
    Vextracti64x2 Vextracti64x4 Vinsertf32x4 Vinsertf32x8 Vinsertf64x2 Vinsertf64x4 Vinserti32x4 Vinserti32x8
    Vinserti64x2 Vinserti64x4 Vmovdqa32 Vmovdqa64 Vmovdqu16 Vmovdqu32 Vmovdqu64 Vmovdqu8 Vpblendmb Vpblendmd
    Vpblendmq Vpblendmw Vpbroadcastmb2q Vpbroadcastmw2d Vpcompressb Vpcompressd Vpcompressq Vpcompressw Vpexpandb
    Vpexpandd Vpexpandq Vpexpandw Vpmovb2m Vpmovd2m Vpmovdb Vpmovdw Vpmovm2b Vpmovm2d Vpmovm2q Vpmovm2w Vpmovq2m
    Vpmovqb Vpmovqd Vpmovqw Vpmovsdb Vpmovsdw Vpmovsqb Vpmovsqd Vpmovsqw Vpmovswb Vpmovusdb Vpmovusdw Vpmovusqb
    Vpmovusqd Vpmovusqw Vpmovuswb Vpmovw2m Vpmovwb
};

/// Integer arithmetic, logic, comparisons into opmasks, permutations.
pub static INTEGER: &[Row] = rows! {
    Vector, select::integer;
    Vector:
    Valignd Valignq Vcvtne2ps2bf16 Vcvtneps2bf16 Vdbpsadbw Vdpbf16ps
    Vpabsq Vpandd Vpandnd Vpandnq Vpandq Vpcmpb Vpcmpd Vpcmpq Vpcmpub Vpcmpud Vpcmpuq Vpcmpuw Vpcmpw Vpconflictd
    Vpconflictq Vpermb Vpermi2b Vpermi2d Vpermi2pd Vpermi2ps Vpermi2q Vpermi2w Vpermt2b Vpermt2d Vpermt2pd Vpermt2ps
    Vpermt2q Vpermt2w Vpermw Vplzcntd Vplzcntq Vpmadd52huq Vpmadd52luq Vpmaxsq Vpmaxuq Vpminsq Vpminuq Vpmullq
    Vpmultishiftqb Vpopcntb Vpopcntd Vpopcntq Vpopcntw Vpord Vporq Vprold Vprolq Vprolvd Vprolvq Vprord Vprorq
    Vprorvd Vprorvq Vpshldd Vpshldq Vpshldvd Vpshldvq Vpshldvw Vpshldw Vpshrdd Vpshrdq Vpshrdvd Vpshrdvq Vpshrdvw
    Vpshrdw Vpshufbitqmb Vpsllvw Vpsraq Vpsravq Vpsravw Vpsrlvw Vpternlogd Vpternlogq Vptestmb Vptestmd Vptestmq
    Vptestmw Vptestnmb Vptestnmd Vptestnmq Vptestnmw Vpxord Vpxorq Vshuff32x4 Vshuff64x2 Vshufi32x4 Vshufi64x2
};

/// Floating-point arithmetic and conversions.
pub static FLOAT: &[Row] = rows! {
    VectorFp, select::float;
    Vector:
    Vfpclasspd Vfpclassps Vfpclasssd Vfpclassss
    Vcvtpd2qq Vcvtpd2udq Vcvtpd2uqq Vcvtps2qq Vcvtps2udq Vcvtps2uqq Vcvtqq2pd Vcvtqq2ps Vcvtsd2usi Vcvtss2usi
    Vcvttpd2qq Vcvttpd2udq Vcvttpd2uqq Vcvttps2qq Vcvttps2udq Vcvttps2uqq Vcvttsd2usi Vcvttss2usi Vcvtudq2pd
    Vcvtudq2ps Vcvtuqq2pd Vcvtuqq2ps Vcvtusi2sd Vcvtusi2ss Vfixupimmpd Vfixupimmps Vfixupimmsd Vfixupimmss Vgetexppd
    Vgetexpps Vgetexpsd Vgetexpss Vgetmantpd Vgetmantps Vgetmantsd Vgetmantss Vrangepd Vrangeps Vrangesd Vrangess
    Vreducepd Vreduceps Vreducesd Vreducess Vrndscalepd Vrndscaleps Vrndscalesd Vrndscaless Vscalefpd Vscalefps
    Vscalefsd Vscalefss
};

/// Dot products of integers, which also have VEX encodings.
pub static VNNI: &[Row] = rows! {
    Vector, bind::integer;
    Vector:
    Vpdpbusd Vpdpbusds Vpdpwssd Vpdpwssds
};

/// Arithmetic in GF(2^8), in every encoding.
pub static GALOIS: &[Row] = rows! {
    Vector, bind::integer;
    Vector:
    Gf2p8affineinvqb Gf2p8affineqb Gf2p8mulb Vgf2p8affineinvqb Vgf2p8affineqb Vgf2p8mulb
};

/// Scatters.
pub static SCATTERS: &[Row] = rows! {
    Vector, gather::bind;
    Handler:
    Vpscatterdd Vpscatterdq Vpscatterqd Vpscatterqq Vscatterdpd Vscatterdps Vscatterqpd Vscatterqps
};

/// Opmasks.
pub static OPMASKS: &[Row] = rows! {
    Vector, opmask::bind;
    Opmask:
    Kaddb Kaddd Kaddq Kaddw Kandb Kandd Kandnb Kandnd Kandnq Kandnw Kandq Kandw Kmovb Kmovd Kmovq Kmovw Knotb Knotd
    Knotq Knotw Korb Kord Korq Kortestb Kortestd Kortestq Kortestw Korw Kshiftlb Kshiftld Kshiftlq Kshiftlw Kshiftrb
    Kshiftrd Kshiftrq Kshiftrw Ktestb Ktestd Ktestq Ktestw Kunpckbw Kunpckdq Kunpckwd Kxnorb Kxnord Kxnorq Kxnorw
    Kxorb Kxord Kxorq Kxorw
};

/// Approximations of reciprocals and of reciprocal square roots, which differ between processors.
pub static APPROXIMATE: &[Row] = rows! {
    VectorFp, select::approximate;
    Handler:
    Vrcp14pd Vrcp14ps Vrcp14sd Vrcp14ss Vrsqrt14pd Vrsqrt14ps Vrsqrt14sd Vrsqrt14ss
    Vrcpph Vrcpsh Vrsqrtph Vrsqrtsh
};

/// Moves of half precision.
pub static HALF_MOVES: &[Row] = rows! {
    Vector, select::integer;
    Vector:
    Vmovsh Vmovw
};

/// Arithmetic of half precision.
pub static HALF: &[Row] = rows! {
    VectorFp, select::float;
    Vector:
    Vaddph Vaddsh Vcmpph Vcmpsh Vcomish Vcvtdq2ph Vcvtpd2ph Vcvtph2dq Vcvtph2pd Vcvtph2psx Vcvtph2qq Vcvtph2udq
    Vcvtph2uqq Vcvtph2uw Vcvtph2w Vcvtps2phx Vcvtqq2ph Vcvtsd2sh Vcvtsh2sd Vcvtsh2si Vcvtsh2ss Vcvtsh2usi Vcvtsi2sh
    Vcvtss2sh Vcvttph2dq Vcvttph2qq Vcvttph2udq Vcvttph2uqq Vcvttph2uw Vcvttph2w Vcvttsh2si Vcvttsh2usi Vcvtudq2ph
    Vcvtuqq2ph Vcvtusi2sh Vcvtuw2ph Vcvtw2ph Vfcmaddcph Vfcmaddcsh Vfcmulcph Vfcmulcsh Vfmadd132ph Vfmadd132sh
    Vfmadd213ph Vfmadd213sh Vfmadd231ph Vfmadd231sh Vfmaddcph Vfmaddcsh Vfmaddsub132ph Vfmaddsub213ph Vfmaddsub231ph
    Vfmsub132ph Vfmsub132sh Vfmsub213ph Vfmsub213sh Vfmsub231ph Vfmsub231sh Vfmsubadd132ph Vfmsubadd213ph
    Vfmsubadd231ph Vfmulcph Vfmulcsh Vfnmadd132ph Vfnmadd132sh Vfnmadd213ph Vfnmadd213sh Vfnmadd231ph Vfnmadd231sh
    Vfnmsub132ph Vfnmsub132sh Vfnmsub213ph Vfnmsub213sh Vfnmsub231ph Vfnmsub231sh Vfpclassph Vfpclasssh Vgetexpph
    Vgetexpsh Vgetmantph Vgetmantsh Vmaxph Vmaxsh Vminph Vminsh Vmulph Vmulsh Vreduceph Vreducesh Vrndscaleph
    Vrndscalesh Vscalefph Vscalefsh Vsubph Vsubsh Vucomish
};

/// Division and square root of half precision.
pub static HALF_DIVISION: &[Row] = rows! {
    VectorDiv, select::float;
    Vector:
    Vdivph Vdivsh Vsqrtph Vsqrtsh
};
