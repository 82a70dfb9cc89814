document.addEventListener("DOMContentLoaded", () => {
  // A picture opens at its own size: on a page it is made to fit the column.
  for (const picture of document.querySelectorAll("article img")) {
    if (picture.closest("a")) continue;
    const link = document.createElement("a");
    link.href = picture.src;
    link.title = "Open the picture";
    picture.replaceWith(link);
    link.append(picture);
  }
  // What the theme leaves out for those who use a keyboard or a screen reader.
  for (const text of document.querySelectorAll("article :is(pre, .table-wrapper)")) text.tabIndex = 0;
  for (const title of document.querySelectorAll(".caption[role=heading]")) title.ariaLevel = "2";
});
