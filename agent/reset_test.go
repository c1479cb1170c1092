package main

import (
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func aPlace(t *testing.T) *place {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(path.Join(folder, "kept"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := newPlace(folder, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(p.fd) })
	p.kept["kept"] = true
	return p
}

func patiently() *removal {
	return &removal{end: time.Now().Add(time.Minute), entries: maxRemovals}
}

func TestOnlyTheSandboxesFirstProcessResetsUnlessToldTo(t *testing.T) {
	_, err := (&sandbox{}).reset(nil)
	if !errors.Is(err, syscall.EPERM) {
		t.Fatal(err)
	}
}

func TestAPlaceIsEmptiedAndNoLinkIsFollowed(t *testing.T) {
	p, outside := aPlace(t), t.TempDir()
	precious := path.Join(outside, "precious")
	inner := path.Join(p.path, "a", "b")
	for _, err := range []error{
		os.WriteFile(precious, nil, 0o644),
		os.MkdirAll(inner, 0o755),
		os.WriteFile(path.Join(inner, "file"), nil, 0),
		os.Symlink(outside, path.Join(inner, "link")),
		os.Symlink(outside, path.Join(p.path, "link")),
		os.Link(precious, path.Join(p.path, "name")),
		syscall.Mkfifo(path.Join(p.path, "new\nline"), 0),
		os.Chmod(inner, 0),
		os.Chmod(path.Dir(inner), 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if left := p.left(); len(left) != 4 {
		t.Fatal(left)
	}
	if left := append(p.empty(patiently()), p.left()...); len(left) > 0 {
		t.Fatal(left)
	}
	for _, name := range []string{precious, path.Join(p.path, "kept")} {
		if _, err := os.Lstat(name); err != nil {
			t.Error(err)
		}
	}
}

func TestWhatIsTooMuchToRemoveIsAFinding(t *testing.T) {
	p := aPlace(t)
	for _, name := range []string{"1", "2", "3"} {
		_ = os.WriteFile(path.Join(p.path, name), nil, 0o644)
	}
	for _, few := range []*removal{
		{end: time.Now().Add(time.Minute), entries: 2},
		{end: time.Now(), entries: 65},
	} {
		if left := p.empty(few); len(left) != 1 || !strings.Contains(left[0], "more than can be") {
			t.Error(left)
		}
	}
	deep := path.Join(p.path, "deep")
	_ = os.MkdirAll(deep+strings.Repeat("/x", maxDepth+1), 0o755)
	if left := p.empty(patiently()); len(left) != 1 || !strings.Contains(left[0], "deep") {
		t.Error(left)
	}
}

func TestAPlacesOwnAttributesComeBack(t *testing.T) {
	p := aPlace(t)
	before := p.like.Mtim
	if err := os.Chmod(p.path, 0o711); err != nil {
		t.Fatal(err)
	}
	_ = setXattr(p.fd, "user.mark", []byte("1")) // if the file system has any
	_ = os.Chtimes(p.path, time.Unix(5, 0), time.Unix(5, 0))
	if len(p.left()) == 0 {
		t.Fatal("nothing is seen of a changed mode")
	}
	p.restore()
	p.restoreTimes()
	var now syscall.Stat_t
	if err := syscall.Fstat(p.fd, &now); err != nil || now.Mtim != before {
		t.Error(now.Mtim, before, err)
	}
	if left := p.left(); len(left) > 0 {
		t.Error(left)
	}
}

func TestAWritableFileGetsItsContentBack(t *testing.T) {
	name := path.Join(t.TempDir(), "file")
	_ = os.WriteFile(name, []byte("before"), 0o666)
	p, err := newPlace(name, true)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(p.fd)
	for _, content := range []string{"", "BEFORE", strings.Repeat("more", placeBuffer)} {
		_ = os.WriteFile(name, []byte(content), 0o666)
		if len(p.left()) == 0 {
			t.Errorf("%.9q is not seen", content)
		}
		p.restore()
		if left := p.left(); len(left) > 0 {
			t.Error(left)
		}
	}
}

func TestASurveyFindsWhatAJobCouldChange(t *testing.T) {
	const job = 4_000_000
	root := t.TempDir()
	folder := func(name string, mode uint32) string {
		full := path.Join(root, name)
		_ = os.MkdirAll(full, 0o755)
		if err := syscall.Chmod(full, mode); err != nil {
			t.Fatal(err)
		}
		return full
	}
	open, sticky := folder("a/open", 0o777), folder("sticky", 0o1777)
	_ = os.WriteFile(path.Join(sticky, "system's"), nil, 0o644)
	folder("closed", 0o755)
	survey := func() *survey {
		s := survey{id: identity{uid: job, gid: job}, workdir: path.Join(open, "work"),
			end: time.Now().Add(time.Minute)}
		var st syscall.Stat_t
		if err := syscall.Lstat(root, &st); err != nil {
			t.Fatal(err)
		}
		s.walk(root, &st, false)
		for _, p := range s.places {
			syscall.Close(p.fd)
		}
		return &s
	}
	_ = os.Mkdir(path.Join(open, "work"), 0o755)
	s := survey()
	if len(s.refused) > 0 || len(s.places) != 2 {
		t.Fatal(s.refused, s.places)
	}
	if p := s.places[0]; p.path != open || p.remade != "work" || len(p.kept) > 0 {
		t.Errorf("%+v", p)
	}
	if p := s.places[1]; p.path != sticky || !p.kept["system's"] {
		t.Errorf("%+v", p)
	}
	_ = os.WriteFile(path.Join(open, "loose"), nil, 0o644)
	if s = survey(); len(s.refused) != 1 || !strings.Contains(s.refused[0], "loose") {
		t.Error(s.refused)
	}
}

func TestMountsAreRead(t *testing.T) {
	found := mounts("36 35 98:0 / /a\\040b rw,nosuid shared:1 - tmpfs tmpfs rw,size=1k\n" +
		"37 35 0:5 / /b ro - ext4 /dev/x rw\n38 35 0:5 / /c rw - overlay o ro\nnonsense\n")
	want := []mount{{36, "/a b", "tmpfs", false}, {37, "/b", "ext4", true}, {38, "/c", "overlay", true}}
	if !slices.Equal(found, want) {
		t.Error(found)
	}
}

func TestNoIdentityIsGivenTwice(t *testing.T) {
	n := identities{first: 10, at: 10, last: 13, known: map[uint32]bool{11: true}}
	var given []uint32
	for {
		id, err := n.next("/w")
		if err != nil {
			break
		}
		if id.gid != id.uid || id.home != "/w" || len(id.groups) != 0 {
			t.Errorf("%+v", id)
		}
		given = append(given, id.uid)
	}
	if !slices.Equal(given, []uint32{10, 12, 13}) || !n.has(13) || n.has(14) {
		t.Error(given)
	}
}

func TestAMapSaysWhichNumbersThereAre(t *testing.T) {
	name := path.Join(t.TempDir(), "map")
	_ = os.WriteFile(name, []byte("      1000          0          1\n     20000  100  500\n"), 0o644)
	has := mapped(name)
	for _, c := range []struct {
		first, last uint64
		want        bool
	}{{1000, 1000, true}, {1000, 1001, false}, {20000, 20499, true}, {20000, 20500, false}, {0, 0, false}} {
		if has(c.first, c.last) != c.want {
			t.Error(c)
		}
	}
}

func TestObjectsAreKnownByTheirNumbers(t *testing.T) {
	list := "       key      shmid perms\n         5      32768  1666\n         0          7   600\n"
	if found := ids([]byte(list)); len(found) != 2 || !found[32768] || !found[7] {
		t.Error(found)
	}
}
