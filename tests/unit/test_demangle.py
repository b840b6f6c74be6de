from __future__ import annotations

import pytest

from pasta.processors.demangle import demangle, distinct_names, short_name


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_Z4vaddPfS_i", "vadd(float*, float*, int)"),
        ("_ZN2at6native6kernelIfEEvT_", "void at::native::kernel<float>(float)"),
        ("plain_c_kernel", "plain_c_kernel"),
        ("_Z", "_Z"),
        ("_Znot mangled at all", "_Znot mangled at all"),
        ("noyau_élémentaire", "noyau_élémentaire"),
        ("", ""),
    ],
)
def test_demangles(mangled: str, name: str) -> None:
    assert demangle(mangled) == name


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("vadd(float*, float*, int)", "vadd"),
        ("_ZN2at6native6kernelIfEEvT_", "at::native::kernel"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, "
            "std::array<char*, 3ul> >(int, at::native::AddFunctor<float>, std::array<char*, 3ul>)",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("std::enable_if<(1 > 0), void>::type scale<int>(int*)", "scale"),
        ("(anonymous namespace)::reduce(float*)", "(anonymous namespace)::reduce"),
        ("void (anonymous namespace)::reduce<2>(float*)", "(anonymous namespace)::reduce"),
        ("run(int)::{lambda(float)#1}::operator()(float) const", "run::{lambda}::operator()"),
        ("bool ns::operator< <int>(ns::A<int>, int)", "ns::operator<"),
        ("_ZN2nslsIiEEvNS_1AIT_EES2_", "ns::operator<<"),
        ("Wrapper<&f(int)>::call(int)", "Wrapper::call"),
        ("plain", "plain"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "nvjet_tst_128x256_64x4_2x1_v_bz_TNT"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("kernel(float*) [clone .kd]", "kernel"),
        ("unbalanced<(", "unbalanced"),
        ("<odd>", "<odd>"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


def test_ambiguous_short_names_stay_distinct() -> None:
    names = [
        "void at::elementwise<4, A<float>>(int)",
        "void at::elementwise<4, B<float>>(int)",
        "void at::other<4>(int)",
    ]
    assert distinct_names(names) == [
        "at::elementwise<..A<float>>(int)",
        "at::elementwise<..B<float>>(int)",
        "at::other",
    ]
    assert distinct_names([names[0], names[0]]) == ["at::elementwise"] * 2
    assert distinct_names([]) == []
